"""The NVIDIA driver by ctypes, as much of it as moving bytes takes. Loaded when the first CUDA memory is met.

Calls release the GIL (ctypes does) and use the device's primary context, the one that torch uses. Copies wait for
what the legacy default stream was given before; work on other streams is the caller's to await.
"""

import ctypes
import functools
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from daemons.core.errors import TransferError

LIBRARY: Final = "libcuda.so.1"

_HOST_PORTABLE: Final = 1
"""CU_MEMHOSTALLOC_PORTABLE: pinned for every context of the process."""
_DMA_BUF_FD: Final = 1
"""CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD"""
_SYNC_MEMOPS: Final = 6
"""CU_POINTER_ATTRIBUTE_SYNC_MEMOPS"""

_PCI_TEXT_BYTES: Final = 16
_POINTER, _SIZE, _INT = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int
_OUT = ctypes.c_void_p
_SIGNATURES: Final = {
    "cuInit": (ctypes.c_uint,),
    "cuGetErrorString": (_INT, _OUT),
    "cuDeviceGet": (_OUT, _INT),
    "cuDeviceGetPCIBusId": (_OUT, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_OUT, _INT),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (_OUT,),
    "cuMemHostAlloc": (_OUT, _SIZE, ctypes.c_uint),
    "cuMemFreeHost": (ctypes.c_void_p,),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, _POINTER, _SIZE),
    "cuMemcpyHtoD_v2": (_POINTER, ctypes.c_void_p, _SIZE),
    "cuMemGetHandleForAddressRange": (_OUT, _POINTER, _SIZE, _INT, ctypes.c_ulonglong),
    "cuPointerSetAttribute": (_OUT, _INT, _POINTER),
}
_SINCE_11_7: Final = "cuMemGetHandleForAddressRange"


class CudaError(TransferError):
    """The driver is missing or refused a call; the message says which and why."""


class Driver:
    """Of all devices of the process. Thread safe, as the driver is."""

    def __init__(self, library: str) -> None:
        try:
            self._library = ctypes.CDLL(library)
            for name, arguments in _SIGNATURES.items():
                if name != _SINCE_11_7 or hasattr(self._library, name):
                    getattr(self._library, name).argtypes = arguments
        except (OSError, AttributeError) as error:
            raise CudaError(
                f"memory of a GPU needs the NVIDIA driver, which cannot be loaded ({error})"
            ) from error
        self._contexts: dict[int, int | None] = {}
        self._call("cuInit", 0)

    def copy_to_host(self, device: int, target: int, source: int, size_bytes: int) -> None:
        """On return the bytes are at the host address `target`."""
        with self._context(device):
            self._call("cuMemcpyDtoH_v2", target, source, size_bytes)

    def copy_to_device(self, device: int, target: int, source: int, size_bytes: int) -> None:
        """On return work that is given to the device later sees the bytes; best from pinned memory."""
        with self._context(device):
            self._call("cuMemcpyHtoD_v2", target, source, size_bytes)

    def allocate_pinned(self, device: int, size_bytes: int) -> int:
        """Address of host memory that the device reaches by itself."""
        address = ctypes.c_void_p()
        with self._context(device):
            self._call("cuMemHostAlloc", ctypes.byref(address), size_bytes, _HOST_PORTABLE)
        assert address.value, "the driver gave no memory and no error"
        return address.value

    def free_pinned(self, device: int, address: int) -> None:
        with self._context(device):
            self._call("cuMemFreeHost", address)

    def pci_address(self, device: int) -> str:
        """As sysfs writes it: 0000:3b:00.0. `device` counts what this process sees, in CUDA's order."""
        text = ctypes.create_string_buffer(_PCI_TEXT_BYTES)
        self._call("cuDeviceGetPCIBusId", text, _PCI_TEXT_BYTES, self._handle(device))
        return text.value.decode().lower()

    def order_copies(self, device: int, address: int) -> None:
        """Have copies of this memory done when their call returns: what another device reads must be complete."""
        with self._context(device):
            self._call("cuPointerSetAttribute", ctypes.byref(_INT(1)), _SYNC_MEMOPS, address)

    def export_dma_buf(self, device: int, address: int, size_bytes: int) -> tuple[int, int]:
        """A descriptor for other devices, the caller closes it, and where in it the memory begins."""
        if not hasattr(self._library, _SINCE_11_7):
            raise CudaError("this NVIDIA driver exports no dma-buf; that takes 515 or later")
        start = address // mmap.PAGESIZE * mmap.PAGESIZE
        end = -(-(address + size_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = _INT(-1)
        with self._context(device):
            self._call(_SINCE_11_7, ctypes.byref(descriptor), start, end - start, _DMA_BUF_FD, 0)
        return descriptor.value, address - start

    @contextmanager
    def _context(self, device: int) -> Iterator[None]:
        """Current for this thread, and what was current before again afterwards."""
        self._call("cuCtxPushCurrent_v2", self._primary_context(device))
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _primary_context(self, device: int) -> int | None:
        """Kept for the life of the process."""
        if device not in self._contexts:
            context = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._handle(device))
            self._contexts[device] = context.value
        return self._contexts[device]

    def _handle(self, device: int) -> int:
        handle = _INT()
        self._call("cuDeviceGet", ctypes.byref(handle), device)
        return handle.value

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CudaError(f"{name} of the NVIDIA driver failed: {self._why(status)}")

    def _why(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        return f"{(text.value or b'unknown error').decode()} ({status})"


@functools.cache
def load_driver() -> Driver:
    """Raises CudaError, each time anew, where there is none."""
    return Driver(LIBRARY)
