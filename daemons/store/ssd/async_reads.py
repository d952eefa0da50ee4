"""Several reads of one thread in flight at once, by the kernel's own asynchronous I/O: what has arrived is hashed while
the rest is on its way. Helper threads in its place cost more in switches than they hide. (io_submit(2).)

Only O_DIRECT reads are truly asynchronous, and only those come here. No read is left behind: the kernel would go on
writing into memory that its owner uses for something else by then.
"""

import ctypes
import errno
import os
import platform
import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

MAX_PIECES: Final = 16
_NUMBERS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Of io_setup, io_destroy, io_getevents and io_submit, by machine."""
_local = threading.local()


class _Request(ctypes.Structure):
    """struct iocb; operation 0 is a pread."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("operation", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("num_bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class PieceReader:
    """One thread's. Raises OSError where the kernel offers no such thing."""

    def __init__(self) -> None:
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None:
            raise OSError(errno.ENOSYS, "unknown machine")
        setup, self._destroy, self._getevents, self._submit = map(ctypes.c_long, numbers)
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self._requests = (_Request * MAX_PIECES)()
        self._events = (_Event * MAX_PIECES)()
        first, size = ctypes.addressof(self._requests), ctypes.sizeof(_Request)
        self._pointers = (ctypes.c_void_p * MAX_PIECES)(
            *(first + number * size for number in range(MAX_PIECES))
        )
        self._checked(self._call(setup, ctypes.c_long(MAX_PIECES), ctypes.byref(self._context)))

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._call(self._destroy, self._context)

    def read(
        self,
        fd: int,
        pieces: Sequence[memoryview],
        offset: int,
        on_piece: Callable[[int], object],
    ) -> None:
        """As `BucketFile.read_pieces`."""
        offsets = []
        for number, piece in enumerate(pieces):
            request = self._requests[number]
            request.data, request.fd, request.offset = number, fd, offset
            request.num_bytes = len(piece)
            request.address = np.frombuffer(piece, np.uint8).__array_interface__["data"][0]
            offsets.append(offset)
            offset += len(piece)
        count = ctypes.c_long(len(pieces))
        submitted = self._call(self._submit, self._context, count, self._pointers)
        self._checked(submitted)
        self._wait(submitted, pieces, on_piece)
        for number in range(submitted, len(pieces)):  # more than the kernel took at once
            _check_length(os.preadv(fd, [pieces[number]], offsets[number]), pieces[number])
            on_piece(number)

    def _wait(
        self, num_left: int, pieces: Sequence[memoryview], on_piece: Callable[[int], object]
    ) -> None:
        """For all, whatever happens to any."""
        failure: OSError | None = None
        try:
            while num_left:
                num_done = self._reap(num_left)
                num_left -= num_done
                done = [(event.data, event.result) for event in self._events[:num_done]]
                for number, result in done:
                    try:
                        _check_length(result, pieces[number])
                    except OSError as error:
                        failure = error
                    else:
                        on_piece(number)
        finally:
            while num_left:
                num_left -= self._reap(num_left)
        if failure is not None:
            raise failure

    def _reap(self, max_events: int) -> int:
        """At least one."""
        one, most = ctypes.c_long(1), ctypes.c_long(max_events)
        while True:
            num_done = self._call(self._getevents, self._context, one, most, self._events, None)
            if num_done > 0:
                return int(num_done)
            if num_done < 0 and ctypes.get_errno() != errno.EINTR:
                self._checked(num_done)

    def _checked(self, result: int) -> None:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


def piece_reader() -> PieceReader | None:
    """This thread's; None where there is none."""
    try:
        reader: PieceReader | None = _local.reader
    except AttributeError:
        try:
            reader = PieceReader()
        except OSError:
            reader = None
        _local.reader = reader
    return reader


def _check_length(result: int, piece: memoryview) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    if result != len(piece):
        raise OSError(errno.EIO, "the file ends early; it was cut short")
