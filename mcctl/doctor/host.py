"""Facts of this host that the checks ask for, read once. Nothing is changed, and root is not needed."""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MEMORY_FILES: Final = frozenset({"tmpfs", "hugetlbfs", "ramfs"})
_TIME_ERROR: Final = 5
"""adjtimex: the clock is not synchronized (TIME_ERROR)."""
_TIMEX_BYTES: Final = 512
"""More than struct timex has anywhere; mode 0 only reads."""


@dataclass(frozen=True, slots=True)
class FileSystem:
    """Where a directory lies."""

    kind: str
    mount: str
    size_bytes: int
    free_bytes: int

    @property
    def is_memory(self) -> bool:
        return self.kind in _MEMORY_FILES


@dataclass(frozen=True, slots=True)
class Host:
    memory_bytes: int
    is_clock_synchronized: bool | None
    """None where the kernel does not say."""


def read_host() -> Host:
    return Host(_memory_bytes(Path("/proc/meminfo")), _is_clock_synchronized())


def file_system(directory: Path, mounts: Path = Path("/proc/self/mountinfo")) -> FileSystem | None:
    """None for a directory that is not there."""
    try:
        there = directory.resolve(strict=True)
        stat = os.statvfs(there)
    except OSError:
        return None
    kind, mount = "unknown", Path("/")
    for line in mounts.read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        place = Path(before.split()[4].encode().decode("unicode_escape"))
        # The last one that fits is on top of the others.
        if there.is_relative_to(place) and len(place.parts) >= len(mount.parts):
            kind, mount = after.split()[0], place
    return FileSystem(
        kind, str(mount), stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    )


def _memory_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    return 0


def _is_clock_synchronized() -> bool | None:
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(
            ctypes.create_string_buffer(_TIMEX_BYTES)
        )
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR
