"""PinBlocks: pins are the directory's; cache nodes are told which of their blocks are pinned, for the time without a
master, log those that were asked for, and tell them to the next one.
"""

from collections.abc import Iterable
from itertools import islice

from daemons.core.errors import Exhausted, ProtocolError
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.state import MasterState
from daemons.protocol.pin import HoldPins, Pin, PinBlocks, PinBlocksReply
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.store.eviction.pins import HARD, SOFT, HeldPin

MAX_TTL_MS = 30 * 24 * 3600 * 1000
MAX_HASHES = 10_000
MAX_ENDED = 2 * MAX_HASHES
MAX_TOLD = 50_000
"""Pins that one node is told, beginnings of prefixes first: a notice of about 2 MB."""


class Pinning:
    """Loop thread only."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self._announcing: set[NodeId] = set()
        """Not told before all of their blocks are known: they would take what is missing for ended."""
        self._ended: dict[BlockHash, None] = {}
        """Unpinned by this master, the latest: a node that was away may not know."""
        self._told_at = 0
        """`num_changes` of the pins when the nodes were last told."""

    def change(self, message: PinBlocks) -> PinBlocksReply:
        _check(message)
        state = self._state
        now_s = state.now_s()
        pins, blocks = state.directory.pins, state.directory.blocks
        if message.level == "none":
            changed = pins.unpin(message.hashes)
            self._ended |= dict.fromkeys(message.hashes)
            for block_hash in list(islice(self._ended, max(0, len(self._ended) - MAX_ENDED))):
                del self._ended[block_hash]
        else:
            changed = [each for each in message.hashes if each in blocks.row_by_hash]
            level = HARD if message.level == "hard" else SOFT
            pins.pin(changed, HeldPin(level, now_s + message.ttl_ms / 1000))
            for block_hash in changed:
                self._ended.pop(block_hash, None)
        self.tell()
        return PinBlocksReply(
            num_changed=len(changed),
            num_pinned=len(pins.held(blocks, now_s=now_s)),
            missing=[each for each in message.hashes if each not in set(changed)],
        )

    def learn(self, told: Iterable[Pin]) -> None:
        """What a node was told by the master before; what is known here is newer."""
        pins, now_s = self._state.directory.pins, self._state.now_s()
        for pin in told:
            is_sound = len(pin.hash) == HASH_BYTES and 0 < pin.ttl_ms <= MAX_TTL_MS
            if not is_sound or pin.hash in pins.pins or pin.hash in self._ended:
                continue
            held = HeldPin(HARD if pin.is_hard else SOFT, now_s + pin.ttl_ms / 1000)
            try:
                pins.pin([pin.hash], held)
            except Exhausted:
                return

    def on_report(self, node: NodeId, *, is_first: bool, is_announcing: bool) -> None:
        """One that has announced all it has is told anew: pins may have ended while it was away."""
        if is_announcing:
            self._announcing.add(node)
        elif is_first or node in self._announcing:
            self._announcing.discard(node)
            self._told_at = -1

    def tick(self) -> None:
        """Blocks that came back, and pins that ended."""
        state = self._state
        state.directory.pins.held(state.directory.blocks, now_s=state.now_s())
        if state.directory.pins.num_changes != self._told_at:
            self.tell()

    def tell(self) -> None:
        """Every node that lends memory, also one that has nothing pinned any more."""
        state = self._state
        pins_by_node = self._pins_by_node()
        for member in state.membership:
            has_announced = member.next_sequence is not None
            has_announced &= member.node.node not in self._announcing
            if member.node.segments and member.state != "dead" and has_announced:
                pins = pins_by_node.get(member.node.node, [])
                state.out.notify(member, HoldPins(pins=pins, incarnation=state.incarnation))
        self._told_at = state.directory.pins.num_changes

    def _pins_by_node(self) -> dict[NodeId, list[Pin]]:
        directory, now_s = self._state.directory, self._state.now_s()
        held = directory.pins.held(directory.blocks, now_s=now_s)
        by_depth = sorted(held, key=lambda row: directory.blocks.depth.values.item(row))
        pins_by_node: dict[NodeId, list[Pin]] = {}
        for row in by_depth:
            block_hash, pin = directory.blocks.hash_of(row), held[row]
            own = directory.pins.pins.get(block_hash)
            told = Pin(
                hash=block_hash,
                is_hard=pin.level == HARD,
                ttl_ms=max(1, round((pin.until_s - now_s) * 1000)),
                is_own=own is not None,
            )
            for node in directory.nodes_of(row):
                pins = pins_by_node.setdefault(node, [])
                if len(pins) < MAX_TOLD:
                    pins.append(told)
        return pins_by_node


def _check(message: PinBlocks) -> None:
    if len(message.hashes) > MAX_HASHES:
        raise ProtocolError(f"{len(message.hashes)} hashes in one message; send {MAX_HASHES}")
    if not 0 < message.ttl_ms <= MAX_TTL_MS:
        raise ProtocolError(f"a pin lasts 1 ms to {MAX_TTL_MS} ms, not {message.ttl_ms} ms")
    if any(len(block_hash) != HASH_BYTES for block_hash in message.hashes):
        raise ProtocolError(f"a block hash has {HASH_BYTES} bytes")
