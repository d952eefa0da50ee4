"""What kind of filesystem a directory lies on: a segment belongs into memory."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_IN_MEMORY: Final = frozenset({"tmpfs", "hugetlbfs", "ramfs"})


@dataclass(frozen=True, slots=True)
class FileSystem:
    """Where a directory lies."""

    kind: str
    mount: str
    size_bytes: int
    free_bytes: int
    page_bytes: int = 4096
    """Of a hugetlbfs: what it hands out."""

    @property
    def is_memory(self) -> bool:
        return self.kind in _IN_MEMORY


def file_system(directory: Path, mounts: Path = Path("/proc/self/mountinfo")) -> FileSystem | None:
    """Of the directory, or of where it would be made. None where nobody can look."""
    try:
        there = next(place for place in (directory, *directory.parents) if place.exists()).resolve()
        stat = os.statvfs(there)
    except (OSError, StopIteration):
        return None
    kind, mount = "unknown", Path("/")
    for line in mounts.read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        place = Path(before.split()[4].encode().decode("unicode_escape"))
        # The last one that fits is on top of the others.
        if there.is_relative_to(place) and len(place.parts) >= len(mount.parts):
            kind, mount = after.split()[0], place
    return FileSystem(
        kind,
        str(mount),
        stat.f_blocks * stat.f_frsize,
        stat.f_bavail * stat.f_frsize,
        stat.f_bsize,
    )
