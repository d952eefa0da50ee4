"""READ of another process's private memory on this host in one copy, where the kernel permits it (process_vm_readv).

The kernel checks as ptrace does: the same user, and no Yama in the way. ctypes releases the GIL.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daemons.protocol.segment import Strided
from daemons.transfer.strided import ByteArray, contiguous

_MAX_VECTORS = 1024
_STEP_BYTES = 64 << 20
"""One call: a deadline or a cancel is noticed between calls."""

_read = ctypes.CDLL(None, use_errno=True).process_vm_readv
_read.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)
_read.restype = ctypes.c_ssize_t


class ForeignMemory(NamedTuple):
    """Memory of another process that starts at `address`."""

    pid: int
    address: int


Check = Callable[[], object]
"""Raises when it should stop: called between steps."""


def is_permitted(pid: int, address: int) -> bool:
    """Try one byte."""
    byte = np.empty(1, np.uint8)
    try:
        _transfer(
            pid,
            _vectors(byte.ctypes.data, contiguous(0, 1)),
            _vectors(address, contiguous(0, 1)),
            1,
        )
    except OSError:
        return False
    return True


def fits(remote: Strided, target: Strided) -> bool:
    """Whether it can be done in few calls."""
    return max(remote.num_rows, target.num_rows) <= _MAX_VECTORS


def read(
    memory: ForeignMemory, remote: Strided, local: ByteArray, target: Strided, check: Check
) -> None:
    """Bounds have been checked. Raises OSError; then some of the bytes may have been written."""
    pid, address = memory
    here, length = int(local.ctypes.data), remote.length
    if remote.num_rows == 1 and target.num_rows == 1:
        for start in range(0, length, _STEP_BYTES):
            check()
            step = min(_STEP_BYTES, length - start)
            _transfer(
                pid,
                _vectors(here, contiguous(target.offset + start, step)),
                _vectors(address, contiguous(remote.offset + start, step)),
                step,
            )
        return
    check()
    _transfer(pid, _vectors(here, target), _vectors(address, remote), length)


def _transfer(pid: int, mine: NDArray[np.uint64], theirs: NDArray[np.uint64], length: int) -> None:
    count = _read(pid, mine.ctypes.data, len(mine), theirs.ctypes.data, len(theirs), 0)
    if count == length:
        return
    number = ctypes.get_errno() if count < 0 else errno.EFAULT
    raise OSError(number, os.strerror(number))


def _vectors(base: int, ranges: Strided) -> NDArray[np.uint64]:
    """An array of struct iovec."""
    vectors = np.empty((ranges.num_rows, 2), np.uint64)
    starts = np.arange(ranges.num_rows, dtype=np.uint64) * np.uint64(ranges.stride_bytes)
    vectors[:, 0] = starts + np.uint64(base + ranges.offset)
    vectors[:, 1] = ranges.row_bytes
    return vectors
