"""Where a segment and its index lie to outlive the process: files of a tmpfs, or memory in systemd's fd store.

A file is there for every later process until somebody removes it. What only the fd store holds no path leads to, cannot
be cut short, and is free again when the unit is stopped.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final, Protocol

from daemons.core.errors import ConfigError
from daemons.core.units import format_size, parse_whole
from daemons.service.fd_store import FdStore
from daemons.store.index.files import IndexFiles, IndexInDirectory
from daemons.store.index.format import WrongIndex
from daemons.store.segment.segment import Segment
from daemons.transfer import SharedMemory, adopt_shared, reopen_shared
from daemons.transfer.memory import Progress

_SEGMENT: Final = "segment"
_INDEX: Final = "index"


class Place(Protocol):
    """Of one segment and its index."""

    index: IndexFiles
    path: Path | None
    """Of the segment, where a path leads to it."""
    does_keep: bool
    """Whether a later process finds anything here."""

    def reopen(self, size_bytes: int) -> SharedMemory | None:
        """What the process before left; None where nothing is. Raises TransferError where it is of no use."""

    def create(self, size_bytes: int, progress: Progress, number: int = 0) -> Segment:
        """Empty, in place of what was left. Raises ConfigError, Exhausted."""

    def read_index(self, max_bytes: int, nth: int = 0) -> bytes:
        """The latest, or an earlier one where that is none. Raises FileNotFoundError where there are no more, OSError,
        WrongIndex.
        """

    def close(self, *, is_kept: bool) -> None:
        """Before the memory is closed: it and the index are to be found by the next process, or given up."""


class DirectoryPlace:
    """`path`, and the index beside it or elsewhere, in directories of this user alone."""

    does_keep = True

    def __init__(self, path: Path, index_path: Path | None = None) -> None:
        """Raises ConfigError."""
        index_path = index_path or path.with_suffix(".index")
        for directory in {path.parent, index_path.parent}:
            _check_directory(directory)
        self.path: Path | None = path
        self._segment_path = path
        self._index_path = index_path
        self.index: IndexFiles = IndexInDirectory(self._index_path)

    def reopen(self, size_bytes: int) -> SharedMemory | None:
        return reopen_shared(self._segment_path, size_bytes)

    def create(self, size_bytes: int, progress: Progress, number: int = 0) -> Segment:
        try:
            segment = Segment.create(
                size_bytes, self._segment_path, progress=progress, number=number
            )
        except BaseException:
            self._remove_if_empty()
            raise
        self.index.remove()  # only now that the lock is ours
        return segment

    def read_index(self, max_bytes: int, nth: int = 0) -> bytes:
        if nth:
            raise FileNotFoundError
        fd = os.open(self._index_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            _check_index(os.fstat(fd), max_bytes)
            return file.read()

    def close(self, *, is_kept: bool) -> None:
        """The memory's own close removes the file where it is not kept."""
        if not is_kept:
            self._remove_if_empty()

    def _remove_if_empty(self) -> None:
        for directory in {self._segment_path.parent, self._index_path.parent}:
            with contextlib.suppress(OSError):
                directory.rmdir()


class FdStorePlace:
    """Memory without a name. Where systemd did not start this process it ends with it."""

    path: Path | None = None

    def __init__(self, fd_store: FdStore, prefix: str) -> None:
        """`prefix` is of the descriptors' names, one for each segment of a unit."""
        self._fd_store = fd_store
        self._name = f"{prefix}-{_SEGMENT}"
        self._index = _IndexInFdStore(fd_store, f"{prefix}-{_INDEX}-")
        self.index: IndexFiles = self._index
        self.does_keep = fd_store.is_there

    def reopen(self, size_bytes: int) -> SharedMemory | None:
        fd = self._fd_store.take(self._name)
        return None if fd is None else adopt_shared(fd, size_bytes)

    def create(self, size_bytes: int, progress: Progress, number: int = 0) -> Segment:
        self._forget()
        # What was left is as large as the new one: there may be no room for both.
        self._fd_store.wait_until_heard()
        segment = Segment.create(size_bytes, progress=progress, number=number)
        self._fd_store.keep(self._name, segment.memory.fd)
        return segment

    def read_index(self, max_bytes: int, nth: int = 0) -> bytes:
        fd = self._index.take(nth)
        with os.fdopen(fd, "rb") as file:
            _check_index(os.fstat(fd), max_bytes)
            file.seek(0)  # the offset is shared with who wrote it
            return file.read()

    def close(self, *, is_kept: bool) -> None:
        if not is_kept:
            self._forget()

    def _forget(self) -> None:
        self.index.remove()
        self._fd_store.forget(self._name)


def _number(name: str, prefix: str) -> int | None:
    """As it was written: 07 is none of ours."""
    number = parse_whole(name.removeprefix(prefix)) if name.startswith(prefix) else None
    return number if name == f"{prefix}{number}" else None


class _IndexInFdStore:
    """Versions have numbers in their names: should two be there, the higher is the later one, and complete. One that
    is no index of ours, of whatever number, hides none that is.
    """

    def __init__(self, fd_store: FdStore, prefix: str) -> None:
        self.name = f"fd store {prefix}*"
        self._fd_store = fd_store
        self._prefix = prefix
        self._left = sorted(
            number for name in fd_store.names() if (number := _number(name, prefix)) is not None
        )
        self._number = self._left[-1] if self._left else 0

    def take(self, nth: int) -> int:
        """From the latest on. Raises FileNotFoundError."""
        numbers = self._left[::-1]
        fd = self._fd_store.take(f"{self._prefix}{numbers[nth]}") if nth < len(numbers) else None
        if fd is None:
            raise FileNotFoundError
        return fd

    def new_draft(self) -> int:
        return os.memfd_create("mooncake-index", os.MFD_CLOEXEC)

    def replace(self, draft: int) -> None:
        self._number += 1
        self._fd_store.keep(f"{self._prefix}{self._number}", draft)
        self._forget_left()
        self._left = [self._number]

    def drop_draft(self) -> None:
        """It was never kept, and is closed."""

    def remove(self) -> None:
        self._forget_left()
        self._left = []

    def _forget_left(self) -> None:
        for number in self._left:
            self._fd_store.forget(f"{self._prefix}{number}")


def _check_directory(directory: Path) -> None:
    """Whoever owns it could put any file in the place of ours. Raises ConfigError."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = directory.lstat()
    except OSError as error:
        raise ConfigError(f"cannot create {directory}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ConfigError(
            f"{directory} is no directory of this user; remove it, or choose another directory"
        )


def _check_index(status: os.stat_result, max_bytes: int) -> None:
    """Raises WrongIndex."""
    if not stat.S_ISREG(status.st_mode):
        raise WrongIndex("it is no file")
    if status.st_size > max_bytes:
        raise WrongIndex(f"it has {format_size(status.st_size)}, more than any index")
