"""Memory that peers can reach: shared allocations, registered regions, and who shares a host.

A region that others map is fully allocated and cannot shrink, so no reader dies of SIGBUS.
"""

import errno
import fcntl
import functools
import hashlib
import mmap
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from daemons.core.errors import ConfigError, Exhausted, TransferError
from daemons.core.file_lock import Refusal, lock_open_file, unlock_open_file
from daemons.core.ids import HostId
from daemons.core.units import MIB, format_size
from daemons.transfer.device_memory import DeviceMemory, LocalMemory, address_of
from daemons.transfer.prefault import prefault
from daemons.transfer.strided import ByteArray

_ALLOCATE_STEP = 256 * MIB
Access = Literal["read", "read-write"]
"""What peers may do to a region."""

Progress = Callable[[int, int], None]
"""Called with (bytes allocated, bytes in all)."""


class SharedMemory:
    """Pages that other processes can map: a sealed memfd, or a locked file on a tmpfs."""

    def __init__(self, fd: int, size_bytes: int, path: Path | None) -> None:
        """Raises TransferError."""
        self.fd = fd
        self.size_bytes = size_bytes
        self.path = path
        self.is_kept = False
        """Whether the file outlives `close`, for `reopen_shared` by a later process."""
        self._map: mmap.mmap | None = _map(fd, size_bytes)
        self.array: ByteArray = np.frombuffer(self._map, np.uint8)

    @property
    def view(self) -> memoryview:
        return self.array.data

    @property
    def is_cut(self) -> bool:
        """Somebody took pages of the file away: whoever looks at them now is ended by the kernel."""
        return self.fd >= 0 and os.fstat(self.fd).st_size < self.size_bytes

    def populate(self, progress: Progress | None = None) -> None:
        """Map every page now, where the kernel can (Linux 5.14): later each page's first touch takes a microsecond.

        Other threads go on meanwhile.
        """
        for start in range(0, self.size_bytes, _ALLOCATE_STEP):
            end = min(start + _ALLOCATE_STEP, self.size_bytes)
            if not prefault(self.array[start:end]):
                return
            if progress:
                progress(end, self.size_bytes)

    def close(self) -> None:
        """Give the pages up; they live on while any view, here or at a peer, still shows them."""
        if self.path is not None and not self.is_kept:
            self.path.unlink(missing_ok=True)
        if self.fd >= 0:
            if self.is_kept:
                # Views that are still there keep the description open, and by it the lock.
                unlock_open_file(self.fd)
            os.close(self.fd)
            self.fd = -1
        self.array = np.empty(0, np.uint8)
        self._map = None


def allocate_shared(
    name: str, size_bytes: int, path: Path | None = None, progress: Progress | None = None
) -> SharedMemory:
    """Allocate every page now. With `path` a file (replacing one left by a dead process), else a memfd."""
    if size_bytes <= 0:
        raise ConfigError(f"shared memory {name!r} needs a positive size, not {size_bytes}")
    if path is None:
        _check_room(name, size_bytes)
    fd = _create_file(path, size_bytes) if path else os.memfd_create(name, os.MFD_ALLOW_SEALING)
    try:
        _allocate_pages(fd, size_bytes, path or Path("memory"), progress)
        if path is None:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return SharedMemory(fd, size_bytes, path)
    except BaseException:
        os.close(fd)
        if path:
            path.unlink(missing_ok=True)
        raise


def reopen_shared(path: Path, size_bytes: int) -> SharedMemory | None:
    """The file that an ended process kept, with its bytes; None when there is none.

    Raises TransferError when it cannot be used again, ConfigError when a running process has it.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TransferError(f"it cannot be opened: {error.strerror}") from error
    try:
        _lock(fd, path)
        _check_kept(os.fstat(fd), size_bytes)
        # Holes, where there are any: a reader's map must never fault.
        _allocate_pages(fd, size_bytes, path, None)
        return SharedMemory(fd, size_bytes, path)
    except BaseException:
        os.close(fd)
        raise


def adopt_shared(fd: int, size_bytes: int) -> SharedMemory:
    """A memfd of `allocate_shared` that outlived its process, with its bytes; closed where it is of no use.

    Raises TransferError.
    """
    try:
        _check_kept(os.fstat(fd), size_bytes)
        _check_sealed(fd)
        return SharedMemory(fd, size_bytes, None)
    except BaseException:
        os.close(fd)
        raise


def _check_kept(status: os.stat_result, size_bytes: int) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
        raise TransferError("it is no file of this user")
    if status.st_size != size_bytes:
        now, then = format_size(size_bytes), format_size(status.st_size)
        raise TransferError(f"it has {then} and is now to have {now}")


def _check_sealed(fd: int) -> None:
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # no memfd
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise TransferError("it is not sealed against shrinking")


def _map(fd: int, size_bytes: int) -> mmap.mmap:
    """Raises TransferError: not all that can be opened can be mapped and written, such as what was kept read-only."""
    try:
        return mmap.mmap(fd, size_bytes)
    except OSError as error:
        raise TransferError(
            f"it cannot be mapped to be written: {error.strerror}; is it read-only, or this process's address space "
            "limited (ulimit -v)?"
        ) from error


def _check_room(name: str, size_bytes: int) -> None:
    """Taking page after page until none is left would end other processes, not this one's start."""
    room = available_bytes()
    if size_bytes > room:
        raise ConfigError(
            f"{name} needs {format_size(size_bytes)}, but this host has {format_size(room)} of memory left; "
            "ask for less in the config, or free some"
        )


def available_bytes() -> int:
    """What the kernel would give without ending a process: memory that is free or can be dropped, and swap."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    return 1024 * (kib["MemAvailable"] + kib["SwapFree"])


def _create_file(path: Path, size_bytes: int) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists():
            _remove_stale(path)
        room = os.statvfs(path.parent)
        # A hugetlbfs without a limit of its own says 0.
        if room.f_blocks and room.f_bavail * room.f_frsize < size_bytes:
            free = format_size(room.f_bavail * room.f_frsize)
            raise ConfigError(
                f"{path.parent} has {free} free but the segment needs {format_size(size_bytes)}; "
                "make the segment smaller or the tmpfs larger (mount -o remount,size=...)"
            )
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot create {path}: {error.strerror}") from error
    _lock(fd, path)
    return fd


def _remove_stale(path: Path) -> None:
    """Unlink rather than truncate: a peer may still show the old pages."""
    fd = os.open(path, os.O_RDWR)
    try:
        _lock(fd, path)
        path.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    """Held until this descriptor closes: peers get others of their own. Raises ConfigError."""
    next_step = "give each node its own segment path"
    lock_open_file(fd, Refusal(error=ConfigError, what=str(path), next_step=next_step))
    if not path.exists() or not os.path.samestat(os.fstat(fd), path.stat()):
        raise ConfigError(
            f"{path} was just replaced by another process; is this node started twice?"
        )


def _allocate_pages(fd: int, size_bytes: int, where: Path, progress: Progress | None) -> None:
    for start in range(0, size_bytes, _ALLOCATE_STEP):
        length = min(_ALLOCATE_STEP, size_bytes - start)
        try:
            os.posix_fallocate(fd, start, length)
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.ENOMEM)
            raise Exhausted(
                f"only {format_size(start)} of {format_size(size_bytes)} could be allocated in {where}; "
                f"{'free memory or ask for less' if is_full else error.strerror}"
            ) from error
        if progress:
            progress(start + length, size_bytes)


@dataclass(frozen=True, slots=True)
class Region:
    """Registered memory. `fd` is there when peers on this host may map it.

    Memory of a GPU is `device`; `array` and `view` are then empty, so that nothing looks at it by them.
    """

    region_id: int
    array: ByteArray
    view: memoryview
    fd: int | None
    access: Access = "read"
    device: DeviceMemory | None = None

    @property
    def memory(self) -> LocalMemory:
        return self.array if self.device is None else self.device

    @property
    def size_bytes(self) -> int:
        return self.memory.nbytes

    @property
    def address(self) -> int:
        return address_of(self.memory)

    def word(self, index: int) -> int:
        """Little-endian u64 `index`, read in one load."""
        if index < 0 or (index + 1) * 8 > self.array.nbytes:
            raise TransferError(f"generation word {index} is outside region {self.region_id}")
        return int(np.ndarray((), "<u8", self.array, index * 8))


@functools.cache
def host_id() -> HostId:
    """Equal for two processes exactly when they may share memory: same boot, same namespaces."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    for namespace in ("ipc", "net", "user"):
        digest.update(str(Path(f"/proc/self/ns/{namespace}").stat().st_ino).encode())
    return HostId(digest.hexdigest())
