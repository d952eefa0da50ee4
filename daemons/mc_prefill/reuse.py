"""The prefix that a prompt reuses: first blocks that are in the arena, then blocks of the pool. They arrive layer by
layer on threads of their own; the model thread waits for each.
"""

from dataclasses import dataclass

from daemons.client.prefix_load import LoadTarget, PrefixLoad
from daemons.engine.arena.slot_copy import SlotCopy
from daemons.engine.arena.slots import Slot
from daemons.engine.instance import Instance
from daemons.transfer import ByteArray


@dataclass(slots=True)
class Reuse:
    """`num_held` blocks were in the arena: in the prompt's own slot, or where `copy` takes them from."""

    block_tokens: int
    num_held: int = 0
    copy: SlotCopy | None = None
    load: PrefixLoad | None = None
    """Of the blocks behind these."""

    @property
    def num_blocks(self) -> int:
        """Those that are still good; only shrinks."""
        if self.copy is not None and self.copy.has_failed:
            return 0
        return self.num_held + (0 if self.load is None else self.load.num_blocks)

    @property
    def held_tokens(self) -> int:
        return self.num_held * self.block_tokens

    @property
    def loaded_bytes(self) -> int:
        return 0 if self.load is None else self.load.loaded_bytes

    @property
    def load_s(self) -> float:
        return 0.0 if self.load is None else self.load.elapsed_s

    def wait_opened(self) -> int:
        """Blocks that a prefill may start from."""
        return self.num_held + (0 if self.load is None else self.load.wait_opened())

    def wait_layer(self, layer: int) -> int:
        """Good blocks once `layer` of them is in the slot. Behind them nothing is written any more."""
        is_held = self.copy is None or self.copy.wait_layer(layer)
        if not is_held and self.load is not None:
            self.load.cancel()  # what it brings begins behind a gap
        num_loaded = 0 if self.load is None else self.load.wait_layer(layer)
        return self.num_held + num_loaded if is_held else 0

    def cancel(self) -> None:
        """Stop soon."""
        if self.copy is not None:
            self.copy.cancel()
        if self.load is not None:
            self.load.cancel()


def target_behind(instance: Instance, slot: Slot, num_held: int) -> LoadTarget:
    """Of a load whose first block follows so many that are there."""
    geometry = instance.geometry
    first = num_held * geometry.block_tokens
    first_bytes = first * geometry.bytes_per_token_layer_half

    def half_of(layer: int, half: int, num_tokens: int) -> ByteArray:
        return instance.half(slot, layer, half, first + num_tokens)[first_bytes:]

    return LoadTarget(half_of, geometry.num_layers, geometry.block_tokens)
