"""Any memory a user hands over as flat bytes, without a copy: buffers, numpy, mmap, torch tensors on CPU and GPU.

torch is never imported: a tensor is known by what it offers.
"""

import mmap
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from daemons.core.errors import TransferError
from daemons.transfer.cuda import load_driver
from daemons.transfer.device_memory import DeviceMemory, LocalMemory
from daemons.transfer.strided import ByteArray


@runtime_checkable
class Tensor(Protocol):
    """What is used of a torch tensor."""

    def data_ptr(self) -> int: ...

    def numel(self) -> int: ...

    def element_size(self) -> int: ...

    def is_contiguous(self) -> bool: ...


Buffer = bytes | bytearray | memoryview | mmap.mmap | NDArray[Any] | Tensor
"""What can be registered; Python 3.11 has no type for the buffer protocol itself."""


_HOST, _CUDA = "cpu", "cuda"
_PLAIN = (np.ndarray, bytes, bytearray, memoryview, mmap.mmap)


def as_bytes(memory: Buffer) -> ByteArray:
    """The memory itself; the array keeps it alive. Raises TransferError for what is not contiguous host memory."""
    # Whether it is a tensor is asked last: looking for its methods costs more than all else.
    if not isinstance(memory, _PLAIN) and isinstance(memory, Tensor):
        return _tensor_bytes(memory)
    if isinstance(memory, str):
        raise TransferError("text is not bytes: encode() it first")
    try:
        view = memory.data if isinstance(memory, np.ndarray) else memoryview(memory)
        return np.frombuffer(view.cast("B"), np.uint8)
    except (TypeError, ValueError) as error:
        raise TransferError(f"not a contiguous buffer: {error}") from error


def as_memory(memory: Buffer) -> LocalMemory:
    """The same, and memory of a GPU where it is that. Raises CudaError where the NVIDIA driver is missing."""
    if isinstance(memory, _PLAIN) or not isinstance(memory, Tensor):
        return as_bytes(memory)
    kind, _, index = _device_of(memory).partition(":")
    if kind != _CUDA:
        return _tensor_bytes(memory)
    size_bytes = _size_of(memory)
    return DeviceMemory(load_driver(), int(index or 0), memory.data_ptr(), size_bytes, memory)


class _TensorMemory:
    """Shows a tensor to numpy, and lives as long as the array does."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": (tensor.numel() * tensor.element_size(),),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), False),
        }


def _tensor_bytes(tensor: Tensor) -> ByteArray:
    if (device := _device_of(tensor)) != _HOST:
        raise TransferError(f"a tensor on {device} is not host memory: copy it with cpu() first")
    if not _size_of(tensor):
        return np.empty(0, np.uint8)
    return cast(ByteArray, np.asarray(_TensorMemory(tensor)))


def _device_of(tensor: Tensor) -> str:
    return str(getattr(tensor, "device", _HOST))


def _size_of(tensor: Tensor) -> int:
    if not tensor.is_contiguous():
        raise TransferError("not a contiguous buffer: call contiguous() on the tensor first")
    return tensor.numel() * tensor.element_size()
