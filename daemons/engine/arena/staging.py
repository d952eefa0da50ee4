"""KV on an accelerator has a twin in shared host memory, which is what peers read and the pool loads into.

Both are laid out alike, so a slot's offset is the same in each. On a CPU they are one memory and nothing is copied.
The host side is page-locked where CUDA allows, and every copy has ended when the call returns: a range is announced
only after its bytes are in host memory.
"""

import logging

import torch

from daemons.engine.arena.kv_arena import TORCH_DTYPES, KvArena, KvSlot

log = logging.getLogger(__name__)


class Staging:
    """`memory` is the shared host twin of `arena`, at least as large."""

    def __init__(self, arena: KvArena, memory: memoryview, *, is_same: bool) -> None:
        self.is_same = is_same
        self._arena = arena
        if is_same:
            return
        dtype = TORCH_DTYPES[arena.geometry.dtype]
        self._host = torch.frombuffer(memory, dtype=torch.uint8, count=arena.bytes.numel())
        self._elements = self._host.view(dtype)
        if arena.bytes.is_cuda:
            self._lock_pages()

    def upload(self, slot: KvSlot, start: int, end: int, layer: int | None = None) -> None:
        """Host to device: tokens [start, end) of one layer, or of all."""
        if not self.is_same and start < end:
            _layers(slot.kv, layer)[:, :, start:end] = _layers(self._twin(slot), layer)[
                :, :, start:end
            ].to(slot.kv.device)

    def download(self, slot: KvSlot, start: int, end: int, layer: int | None = None) -> None:
        """Device to host; on return the bytes may be announced."""
        if not self.is_same and start < end:
            _layers(self._twin(slot), layer)[:, :, start:end].copy_(
                _layers(slot.kv, layer)[:, :, start:end]
            )

    def _twin(self, slot: KvSlot) -> torch.Tensor:
        first = slot.offset_bytes // self._elements.element_size()
        return self._elements[first : first + slot.kv.numel()].view(slot.kv.shape)

    def _lock_pages(self) -> None:
        size = self._host.numel()
        result = torch.cuda.cudart().cudaHostRegister(self._host.data_ptr(), size, 0)  # type: ignore[no-untyped-call]  # torch's own
        if int(result) != 0:
            log.warning("KV staging memory is not page-locked: copies to the device are slower")


def _layers(kv: torch.Tensor, layer: int | None) -> torch.Tensor:
    return kv if layer is None else kv[layer : layer + 1]
