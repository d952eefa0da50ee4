"""Slots of one contiguous piece of KV memory, one for each live sequence; free of torch.

A slot is laid out [layer][k|v][token][kv_head][head_dim], so any token range of one half of one layer is one byte
range that a peer can read. Slots never move. Capacity is rounded up to the chunk grid: attention reads keys up to the
end of the last chunk.
"""

import heapq
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from daemons.core.errors import Exhausted
from daemons.engine.geometry import CHUNK_TOKENS, KvGeometry


@dataclass(slots=True, eq=False)
class Slot:
    """The KV memory of one sequence; `index` names its generation word while it lives."""

    index: int
    offset_bytes: int
    capacity_tokens: int
    geometry: KvGeometry

    @property
    def size_bytes(self) -> int:
        return self.capacity_tokens * self.geometry.bytes_per_token

    def half_offset(self, layer: int, half: int, token: int) -> int:
        """Arena offset of the keys (half 0) or values (half 1) of `token` in `layer`."""
        row = (2 * layer + half) * self.capacity_tokens + token
        return self.offset_bytes + row * self.geometry.bytes_per_token_layer_half


AnySlot = TypeVar("AnySlot", bound=Slot)


class SlotSpace(Generic[AnySlot]):
    """First-fit allocator of slots; not thread-safe: one owner calls it."""

    def __init__(
        self,
        geometry: KvGeometry,
        capacity_tokens: int,
        make: Callable[[int, int, int, KvGeometry], AnySlot],
        *,
        num_sequences: int,
    ) -> None:
        """`make`: of (index, offset in bytes, capacity in tokens, geometry)."""
        self.geometry = geometry
        self.capacity_tokens = capacity_tokens
        self.num_sequences = num_sequences
        self._make = make
        self._free: list[tuple[int, int]] = [(0, capacity_tokens)]  # (first, end) in tokens
        self._free_indexes = list(range(num_sequences))
        self._live: dict[int, AnySlot] = {}

    @property
    def free_tokens(self) -> int:
        return sum(end - first for first, end in self._free)

    @property
    def largest_free_tokens(self) -> int:
        """The longest sequence that `allocate` would take now."""
        return max((end - first for first, end in self._free), default=0)

    @property
    def num_live(self) -> int:
        return len(self._live)

    def allocate(self, num_tokens: int) -> AnySlot:
        """A slot for a sequence of at most `num_tokens`; raises Exhausted when none fits now."""
        wanted = round_up(max(num_tokens, 1))
        if not self._free_indexes:
            raise Exhausted(f"all {self.num_sequences} sequences are in use: retry when one ends")
        fitting = (at for at, (first, end) in enumerate(self._free) if end - first >= wanted)
        at = next(fitting, None)
        if at is None:
            raise Exhausted(
                f"no {wanted} contiguous KV tokens: {self.free_tokens} of {self.capacity_tokens} "
                f"are free, {self.largest_free_tokens} together; retry when a sequence ends"
            )
        first, end = self._free[at]
        self._free[at : at + 1] = [(first + wanted, end)] if end - first > wanted else []
        index = heapq.heappop(self._free_indexes)
        slot = self._make(index, first * self.geometry.bytes_per_token, wanted, self.geometry)
        self._live[index] = slot
        return slot

    def renew(self, slot: Slot) -> AnySlot:
        """The same memory for another sequence, which finds there what the one before left: a slot as if allocated."""
        assert self._live.get(slot.index) is slot, "a slot that is not live"
        fresh = self._make(slot.index, slot.offset_bytes, slot.capacity_tokens, self.geometry)
        self._live[slot.index] = fresh
        return fresh

    def free(self, slot: Slot) -> None:
        """Give the slot back; the caller has raised its generation, so no peer trusts it."""
        assert self._live.get(slot.index) is slot, "slot freed twice"
        del self._live[slot.index]
        heapq.heappush(self._free_indexes, slot.index)
        first = slot.offset_bytes // self.geometry.bytes_per_token
        insort(self._free, (first, first + slot.capacity_tokens))
        self._free = coalesced(self._free)

    def check_invariants(self) -> None:
        """Live slots and free ranges tile the arena; free ranges are maximal; indexes are unique."""
        spans = [(first, end) for first, end in self._free]
        for slot in self._live.values():
            first = slot.offset_bytes // self.geometry.bytes_per_token
            spans.append((first, first + slot.capacity_tokens))
        position = 0
        for first, end in sorted(spans):
            assert first == position, f"gap or overlap at token {position}"
            assert end > first
            assert not (end - first) % CHUNK_TOKENS
            position = end
        assert position == self.capacity_tokens
        assert self._free == coalesced(self._free)
        indexes = sorted([*self._free_indexes, *self._live])
        assert indexes == list(range(self.num_sequences))


def round_up(num_tokens: int) -> int:
    """The next multiple of the chunk grid."""
    return -(-num_tokens // CHUNK_TOKENS) * CHUNK_TOKENS


def coalesced(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted ranges with touching neighbours joined."""
    joined: list[tuple[int, int]] = []
    for first, end in ranges:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    return joined
