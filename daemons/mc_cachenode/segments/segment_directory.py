"""The directories that segments are added in; what each lies on may not be mounted at a later start."""

import os
from pathlib import Path

from daemons.core.errors import Exhausted, NotFound
from daemons.core.units import format_size


def mount_of(directory: str) -> str:
    """Where the filesystem is mounted that it lies on. Raises NotFound."""
    path = Path(directory)
    try:
        if path.is_absolute() and path.is_dir():
            there = path.resolve()
            return str(next(place for place in (there, *there.parents) if place.is_mount()))
    except OSError as error:
        raise NotFound(
            f"{_shown(directory)}: this node cannot look at it: {error.strerror}"
        ) from None
    raise NotFound(
        f"{_shown(directory)} is no directory of the node's host; name one on a tmpfs there"
    )


def check_there(directory: str, mount: str) -> None:
    """Raises NotFound where it is gone, or nothing is mounted any more at `mount`: its memory would be a disk's."""
    try:
        if not Path(directory).is_dir():
            raise NotFound(f"{_shown(directory)} is no directory now; is it mounted?")
        if mount and not Path(mount).is_mount():
            raise NotFound(
                f"nothing is mounted at {mount} now, as when the segment was added: mount it and restart the node, "
                "or remove the segment"
            )
    except OSError as error:
        raise NotFound(
            f"{_shown(directory)}: this node cannot look at it: {error.strerror}"
        ) from None


def check_room(directory: str, size_bytes: int) -> None:
    """Raises Exhausted."""
    room = os.statvfs(directory)
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < size_bytes:
        raise Exhausted(
            f"{directory} has {format_size(free_bytes)} free, the segment needs {format_size(size_bytes)}; ask for "
            "less or make the tmpfs larger (mount -o remount,size=...)"
        )


def _shown(directory: str) -> str:
    """Whoever asks may have sent anything."""
    return (
        repr(directory[:200]) if len(directory) > 200 or not directory.isprintable() else directory
    )
