"""Any memory a user hands over as flat bytes, without a copy: buffers, numpy, mmap, torch tensors on the CPU.

torch is never imported: a tensor is known by what it offers.
"""

import mmap
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from daemons.core.errors import TransferError
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
    device = str(getattr(tensor, "device", "cpu"))
    if device != "cpu":
        raise TransferError(
            f"a tensor on {device} cannot be registered: copy it to pinned host memory first "
            "(staging), or use the rdma transport with GPUDirect"
        )
    if not tensor.is_contiguous():
        raise TransferError("not a contiguous buffer: call contiguous() on the tensor first")
    if not tensor.numel():
        return np.empty(0, np.uint8)
    return cast(ByteArray, np.asarray(_TensorMemory(tensor)))
