import mmap

import numpy as np
import pytest

from daemons.core.errors import TransferError
from daemons.transfer.buffers import as_bytes


class Tensor:
    """What a torch tensor shows, over a numpy array."""

    def __init__(self, array: np.ndarray, device: str = "cpu") -> None:
        self.array, self.device = array, device

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)


def test_anything_with_a_contiguous_buffer_is_taken_without_a_copy() -> None:
    for memory in (bytearray(8), memoryview(b"12345678"), np.zeros((2, 1), np.float32)):
        assert as_bytes(memory).nbytes == 8
    assert as_bytes(mmap.mmap(-1, 4096)).nbytes == 4096
    array = np.zeros((4, 2), np.float32)
    as_bytes(array)[0] = 1
    assert array.any()
    with pytest.raises(TransferError, match="not a contiguous buffer"):
        as_bytes(np.zeros((4, 4), np.uint8)[:, ::2])


def test_tensors_on_the_cpu_are_taken_and_kept_alive() -> None:
    tensor = Tensor(np.zeros((4, 2), np.float32))
    flat = as_bytes(tensor)
    assert flat.nbytes == 32
    flat[:] = 1
    assert (tensor.array.view(np.uint8) == 1).all()
    del tensor
    assert int(flat.sum()) == 32
    assert as_bytes(Tensor(np.zeros(0, np.uint8))).nbytes == 0
    with pytest.raises(TransferError, match="contiguous"):
        as_bytes(Tensor(np.zeros((4, 4), np.uint8)[:, ::2]))


def test_device_memory_names_the_way_out() -> None:
    with pytest.raises(TransferError, match="cpu"):
        as_bytes(Tensor(np.zeros(4, np.uint8), "cuda:0"))


def test_real_tensors_share_their_memory() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(10, dtype=torch.bfloat16)
    as_bytes(tensor)[:] = 0x40
    assert bool((tensor != 0).all())
