"""One contiguous piece of memory holding the KV of every live sequence.

A sequence owns one contiguous slot laid out [layer][k|v][token][kv_head][head_dim], so any token
range of one half of one layer is one byte range that a peer can read. Slots never move. Capacity
is rounded up to the chunk grid: attention reads keys up to the end of the last chunk.
"""

import heapq
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from daemons.core.errors import Exhausted
from daemons.engine.geometry import CHUNK_TOKENS, KvGeometry

TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(slots=True, eq=False)
class KvSlot:
    """The KV memory of one sequence; `index` names its generation word while it lives."""

    index: int
    offset_bytes: int
    capacity_tokens: int
    geometry: KvGeometry
    kv: torch.Tensor  # [layer, k|v, token, kv_head, head_dim], a view of the arena
    keys: list[torch.Tensor] = field(init=False)  # a layer's [token, kv_head, head_dim]
    values: list[torch.Tensor] = field(init=False)
    # Positions below this are either written or zero: attention may read them. Only the runner
    # moves it; memory beyond may hold what an earlier sequence or a torn transfer left.
    finite_tokens: int = 0
    _views: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _views_kind: tuple[int, bool] = (0, False)

    def __post_init__(self) -> None:
        self.keys = [self.kv[layer, 0] for layer in range(self.geometry.num_layers)]
        self.values = [self.kv[layer, 1] for layer in range(self.geometry.num_layers)]

    @property
    def size_bytes(self) -> int:
        return self.capacity_tokens * self.geometry.bytes_per_token

    def half_offset(self, layer: int, half: int, token: int) -> int:
        """Arena offset of the keys (half 0) or values (half 1) of `token` in `layer`."""
        row = (2 * layer + half) * self.capacity_tokens + token
        return self.offset_bytes + row * self.geometry.bytes_per_token_layer_half

    def arena_row(self, layer: int, half: int, token: int) -> int:
        """The same place as an index into `KvArena.rows`."""
        return self.half_offset(layer, half, token) // self.geometry.bytes_per_token_layer_half

    def attention_views(
        self, num_tokens: int, *, is_fused: bool = False
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each layer's first keys and values as [1, kv_head, token, head_dim], or fused as
        [1, 1, token, kv_head * head_dim]; kept until asked for others, as making them costs a
        decode step more than its bookkeeping."""
        if self._views_kind != (num_tokens, is_fused):
            halves = self.kv[:, :, :num_tokens]
            heads = halves.flatten(3)[:, :, None] if is_fused else halves.transpose(2, 3)
            self._views = [(layer[0], layer[1]) for layer in heads.unsqueeze(2)]
            self._views_kind = (num_tokens, is_fused)
        return self._views

    def half_ranges(self, layer: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(arena offset, length) of keys, then values, of tokens [start, end) in `layer`."""
        length = (end - start) * self.geometry.bytes_per_token_layer_half
        for half in range(2):
            yield self.half_offset(layer, half, start), length


class KvArena:
    """First-fit allocator of slots over one memory range; not thread-safe: one owner calls it."""

    def __init__(
        self,
        geometry: KvGeometry,
        capacity_tokens: int,
        memory: memoryview | None = None,
        *,
        num_sequences: int = 256,
        device: str = "cpu",
    ) -> None:
        """Lay slots over `memory` (writable, at least `arena_bytes`), or over memory of our own.

        The caller's memory must be zero: a fresh memfd is. With a device other than the CPU the
        arena is always its own memory.
        """
        size = self.arena_bytes(geometry, capacity_tokens)
        if memory is None:
            self.bytes = torch.zeros(size, dtype=torch.uint8, device=device)
        elif memory.nbytes < size:
            raise ValueError(f"the KV arena needs {size} bytes, the memory given {memory.nbytes}")
        else:
            self.bytes = torch.frombuffer(memory, dtype=torch.uint8, count=size)
        self.geometry = geometry
        self.capacity_tokens = size // geometry.bytes_per_token
        self.num_sequences = num_sequences
        self._elements = self.bytes.view(TORCH_DTYPES[geometry.dtype])
        # [half-token row, kv_head, head_dim]: every key and value row of every slot.
        self.rows = self._elements.view(-1, geometry.num_kv_heads, geometry.head_dim)
        self._free: list[tuple[int, int]] = [(0, self.capacity_tokens)]  # (first, end) in tokens
        self._free_indexes = list(range(num_sequences))
        self._live: dict[int, KvSlot] = {}

    @staticmethod
    def arena_bytes(geometry: KvGeometry, capacity_tokens: int) -> int:
        """Memory that `capacity_tokens` need once rounded up to the chunk grid."""
        return round_up(capacity_tokens) * geometry.bytes_per_token

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

    def allocate(self, num_tokens: int) -> KvSlot:
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
        slot = self._make_slot(heapq.heappop(self._free_indexes), first, wanted)
        self._live[slot.index] = slot
        return slot

    def free(self, slot: KvSlot) -> None:
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

    def _make_slot(self, index: int, first: int, num_tokens: int) -> KvSlot:
        geometry = self.geometry
        elements_per_token = 2 * geometry.num_layers * geometry.num_kv_heads * geometry.head_dim
        kv = self._elements[first * elements_per_token : (first + num_tokens) * elements_per_token]
        shape = (geometry.num_layers, 2, num_tokens, geometry.num_kv_heads, geometry.head_dim)
        offset = first * geometry.bytes_per_token
        return KvSlot(index, offset, num_tokens, geometry, kv.view(shape))


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
