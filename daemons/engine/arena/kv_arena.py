"""KV memory of a runner in torch: slots (slots.py) with the tensors that compute looks at."""

from dataclasses import dataclass, field
from functools import partial

import torch

from daemons.engine.arena.slots import Slot, SlotSpace, round_up
from daemons.engine.geometry import KvGeometry

TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(slots=True, eq=False)
class KvSlot(Slot):
    """`kv` is [layer, k|v, token, kv_head, head_dim], a view of the arena."""

    kv: torch.Tensor
    keys: list[torch.Tensor] = field(init=False)  # a layer's [token, kv_head, head_dim]
    values: list[torch.Tensor] = field(init=False)
    # Positions below this are either written or zero: attention may read them. Only the runner
    # moves it; memory beyond may hold what an earlier sequence or a torn transfer left.
    finite_tokens: int = 0
    _views: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _viewed_tokens: int = 0

    def __post_init__(self) -> None:
        self.keys = [self.kv[layer, 0] for layer in range(self.geometry.num_layers)]
        self.values = [self.kv[layer, 1] for layer in range(self.geometry.num_layers)]

    def arena_row(self, layer: int, half: int, token: int) -> int:
        """The same place as an index into `KvArena.rows`."""
        return self.half_offset(layer, half, token) // self.geometry.bytes_per_token_layer_half

    def attention_views(self, num_tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each layer's first keys and values as [1, kv_head, token, head_dim]; kept until asked for others."""
        if self._viewed_tokens != num_tokens:
            heads = self.kv[:, :, :num_tokens].transpose(2, 3)
            self._views = [(layer[0], layer[1]) for layer in heads.unsqueeze(2)]
            self._viewed_tokens = num_tokens
        return self._views


class KvArena(SlotSpace[KvSlot]):
    """Slots over one memory range that torch sees."""

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
        elements = self.bytes.view(TORCH_DTYPES[geometry.dtype])
        # [half-token row, kv_head, head_dim]: every key and value row of every slot.
        self.rows = elements.view(-1, geometry.num_kv_heads, geometry.head_dim)
        make = partial(_view_slot, elements)
        num_tokens = size // geometry.bytes_per_token
        super().__init__(geometry, num_tokens, make, num_sequences=num_sequences)

    @staticmethod
    def arena_bytes(geometry: KvGeometry, capacity_tokens: int) -> int:
        """Memory that `capacity_tokens` need once rounded up to the chunk grid."""
        return round_up(capacity_tokens) * geometry.bytes_per_token


def _view_slot(
    elements: torch.Tensor, index: int, offset_bytes: int, num_tokens: int, geometry: KvGeometry
) -> KvSlot:
    shape = (geometry.num_layers, 2, num_tokens, geometry.num_kv_heads, geometry.head_dim)
    first = offset_bytes // elements.element_size()
    count = num_tokens * geometry.bytes_per_token // elements.element_size()
    return KvSlot(
        index, offset_bytes, num_tokens, geometry, elements[first : first + count].view(shape)
    )
