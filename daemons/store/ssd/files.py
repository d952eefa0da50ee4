"""The files that buckets are made of: the interface, and the real disk, which is where O_DIRECT is found out.

All calls may raise OSError; what it means for the tier is decided above. Offsets, lengths and memory are multiples of
ALIGN in every write, and in every read where `is_direct` says so.
"""

import errno
import logging
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from daemons.core.errors import ConfigError
from daemons.core.file_lock import FileLock, Refusal
from daemons.store.ssd.async_reads import MAX_PIECES, piece_reader

log = logging.getLogger(__name__)

ALIGN = 4096
"""Enough for every block device there is; asking the kernel for less would save nothing here."""

_LOCK_NAME = "lock"
_PROBE_NAME = "probe.tmp"


class BucketFile(Protocol):
    """One open file. Reads and writes may come from several threads at once, and release the GIL."""

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int: ...

    def read_pieces(
        self, pieces: Sequence[memoryview], offset: int, on_piece: Callable[[int], object]
    ) -> None:
        """Fill these, which lie one behind the other; aligned in any case. `on_piece` hears each piece's number once
        it is there, in any order, while others are on their way. Raises OSError.
        """

    def pwritev(self, buffers: Sequence[memoryview], offset: int) -> int: ...

    def sync(self) -> None:
        """Returns when what was written before survives a loss of power."""

    def reserve(self, num_bytes: int) -> None:
        """Raises ENOSPC now rather than later, where the filesystem can promise; reads as zeros."""

    def truncate(self, num_bytes: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class BucketDirectory(Protocol):
    """Names are those of files of this directory. Names made or removed survive only after `sync`."""

    is_direct: bool
    """Whether reads and writes bypass the page cache, and so must be aligned in memory too."""

    def names(self) -> list[str]: ...

    def create(self, name: str) -> BucketFile: ...

    def open(self, name: str) -> BucketFile: ...

    def unlink(self, name: str) -> None: ...

    def sync(self) -> None: ...

    def free_bytes(self) -> int:
        """Of the filesystem, for whoever comes first."""

    def close(self) -> None: ...


class DiskFile:
    """A file descriptor, with what Python's os module offers that takes offsets."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        return os.preadv(self._fd, buffers, offset)

    def read_pieces(
        self, pieces: Sequence[memoryview], offset: int, on_piece: Callable[[int], object]
    ) -> None:
        reader = piece_reader()
        if reader is not None and len(pieces) <= MAX_PIECES:
            reader.read(self._fd, pieces, offset, on_piece)
            return
        for number, piece in enumerate(pieces):
            if os.preadv(self._fd, [piece], offset) != len(piece):
                raise OSError(errno.EIO, "the file ends early; it was cut short")
            on_piece(number)
            offset += len(piece)

    def pwritev(self, buffers: Sequence[memoryview], offset: int) -> int:
        return os.pwritev(self._fd, buffers, offset)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def reserve(self, num_bytes: int) -> None:
        os.posix_fallocate(self._fd, 0, num_bytes)

    def truncate(self, num_bytes: int) -> None:
        os.ftruncate(self._fd, num_bytes)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class DiskDirectory:
    """A directory of this process alone: a second opener is refused, for two writers would destroy the log."""

    def __init__(self, path: Path, *, wants_direct: bool = True) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = FileLock(path / _LOCK_NAME, _second(path))
        try:
            why = _why_not_direct(path / _PROBE_NAME) if wants_direct else "switched off"
        except OSError:
            self.close()
            raise
        self.is_direct = why is None
        log.info("ssd tier path=%s o_direct=%s", path, "yes" if why is None else f"no ({why})")

    def names(self) -> list[str]:
        return [entry.name for entry in self.path.iterdir() if entry.name != _LOCK_NAME]

    def create(self, name: str) -> DiskFile:
        return self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open(self, name: str) -> DiskFile:
        return self._open(name, os.O_RDWR)

    def unlink(self, name: str) -> None:
        (self.path / name).unlink()

    def sync(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        room = os.fstatvfs(self._lock.descriptor)
        return room.f_bavail * room.f_frsize

    def close(self) -> None:
        self._lock.release()

    def _open(self, name: str, flags: int) -> DiskFile:
        if self.is_direct:
            flags |= os.O_DIRECT
        return DiskFile(os.open(self.path / name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _second(path: Path) -> Refusal:
    return Refusal(
        error=ConfigError, what=str(path), next_step="give each node a directory of its own"
    )


def _why_not_direct(probe: Path) -> str | None:
    """None when an aligned write and read with O_DIRECT work here: filesystems differ in where they refuse."""
    page = mmap.mmap(-1, ALIGN)
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return "the filesystem refuses to open with O_DIRECT"
    try:
        if os.pwritev(fd, [page], 0) == os.preadv(fd, [page], 0) == ALIGN:
            return None
    except OSError as error:
        return f"a trial write failed: {error.strerror}"
    finally:
        os.close(fd)
        probe.unlink(missing_ok=True)
    return "a trial write was cut short"
