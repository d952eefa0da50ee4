"""The device tier of simulated prefill nodes: prefixes that stay in a node's KV arena once computed.

Slots, what is kept in them and what is given up for room, and the index that the Conductor asks are the live ones.
What a node makes it also offers to its DRAM, so a prefix that was given up before its turn came is loaded from there.
Copies from slot to slot take no time: device memory is a hundred times as fast as what they stand beside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from daemons.core.ids import BlockHash, NodeId
from daemons.engine.arena.prompt_slot import give_slot
from daemons.engine.arena.retained import ChainOf, Retained, RetainedSlots
from daemons.engine.arena.slots import Slot, SlotSpace, round_up
from daemons.engine.geometry import KvGeometry
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.simulation.trace import BLOCK_TOKENS
from daemons.store.directory.device_index import DeviceIndex

_COUNTED: Final = KvGeometry(1, 1, 1, "bfloat16")
"""Only numbers of tokens matter."""
_MAX_SEQUENCES: Final = 4096
_CHAIN: Final = ChainOf(BlockHash(b"\xff" * HASH_BYTES), "simulated", "")


@dataclass(slots=True)
class InUse:
    """A prompt's slot; the first `num_held` of its blocks were in the arena when it got it."""

    slot: Slot
    num_held: int
    kept: Retained | None = None


class DeviceArena:
    """Of one node. A prompt that finds no slot, for it is longer than all of the arena, leaves nothing behind."""

    def __init__(self, node: NodeId, num_tokens: int, index: DeviceIndex) -> None:
        whole = round_up(num_tokens)
        self._space = SlotSpace(_COUNTED, whole, Slot, num_sequences=_MAX_SEQUENCES)
        self.slots = RetainedSlots(whole, self._space.free, self)
        self._node = node
        self._index = index

    def start(self, hashes: Sequence[BlockHash], num_tokens: int) -> InUse | None:
        """The turn of this prompt has come."""
        usable = (num_tokens - 1) // BLOCK_TOKENS  # the last token is always computed
        found = self.slots.find(hashes, usable)
        given = give_slot(self._space, self.slots, found, num_tokens)
        if given is None:
            return None
        if given.source is not None:
            self.slots.let_go(given.source)
        return InUse(given.slot, given.num_held, given.kept)

    def computed(self, used: InUse, hashes: Sequence[BlockHash], *, now_s: float) -> None:
        """All of its KV is there."""
        if not hashes:
            return
        if used.kept is None:
            used.kept = self.slots.add(used.slot, _CHAIN, hashes, now_s=now_s)
        else:
            self.slots.extend(used.kept, hashes, now_s=now_s)

    def release(self, used: InUse) -> None:
        """Its KV has left for decode: it stays until somebody needs the room."""
        if used.kept is None:
            self._space.free(used.slot)
        else:
            self.slots.let_go(used.kept)

    # -- what the arena tells the Conductor ----------------------------------------------------------------------

    def sealed(self, hashes: Sequence[BlockHash]) -> None:
        blocks = [
            SealedBlock(
                meta=BlockMeta(
                    hash=held.hash,
                    parent=held.parent,
                    namespace=held.chain.model.encode(),
                    depth=held.depth,
                    num_tokens=BLOCK_TOKENS,
                    model=held.chain.model,
                ),
                offset=0,
                length=1,
                trailer_bytes=0,
                version=0,
                seal_checksum=0,
                num_layers=1,
            )
            for held in self.slots.describe(hashes)
        ]
        self._index.record_sealed(self._node, SealedBlocks.pack(blocks), now_s=0.0)

    def freed(self, hashes: Sequence[BlockHash]) -> None:
        self._index.record_freed(self._node, hashes)
