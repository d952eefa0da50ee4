"""Which segments this node lends beside the one of its configuration: a small file that outlives process and host.

A segment is in it before its memory is taken, and until its memory is given back: whatever is killed in between, the
next start knows of it.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from daemons.core.errors import ConfigError, Exhausted
from daemons.core.ids import NodeId
from daemons.protocol.segment import MAX_SEGMENT_NUMBER
from daemons.service.paths import read_state, write_durably

log = logging.getLogger(__name__)

_FILE: Final = "segments.json"


class AddedSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`is_leaving`: its blocks are on their way out of it, also after a restart. `mount`: where what it lies on was
    mounted; elsewhere its memory is not taken.
    """

    number: int
    directory: str
    size_bytes: int
    is_leaving: bool = False
    mount: str = ""

    def __post_init__(self) -> None:
        is_number = 1 <= self.number <= MAX_SEGMENT_NUMBER
        if not is_number or self.size_bytes < 1 or not Path(self.directory).is_absolute():
            raise ValueError(f"segment {self.number} in {self.directory!r} cannot be")


class _Contents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node: str = ""
    next_number: int = 1
    segments: list[AddedSegment] = msgspec.field(default_factory=list)


class SegmentList:
    """Loop thread only. A file that cannot be understood is set aside, and said: the node starts without them."""

    def __init__(self, directory: Path, node: NodeId) -> None:
        """Raises ConfigError for the list of another node, whose segments this one would lend a second time."""
        self._path = directory / _FILE
        self._node = node
        self._contents = _read(self._path)
        if self._contents.node not in ("", node):
            raise ConfigError(
                f"{self._path} is of node {self._contents.node}, this is {node}; give each its own node.state_dir"
            )

    @property
    def segments(self) -> Sequence[AddedSegment]:
        return self._contents.segments

    @property
    def next_number(self) -> int:
        """Never used before."""
        return self._contents.next_number

    def add(self, segment: AddedSegment) -> None:
        """On disk before it returns. Raises Exhausted when it cannot be written; nothing has changed then."""
        self._keep([*self.segments, segment], max(self.next_number, segment.number + 1))

    def leave(self, number: int) -> None:
        """As `add`."""
        changed = [
            msgspec.structs.replace(each, is_leaving=True) if each.number == number else each
            for each in self.segments
        ]
        self._keep(changed, self.next_number)

    def remove(self, number: int) -> None:
        """As `add`."""
        self._keep([each for each in self.segments if each.number != number], self.next_number)

    def _keep(self, segments: list[AddedSegment], next_number: int) -> None:
        fresh = _Contents(node=self._node, next_number=next_number, segments=segments)
        if fresh == self._contents:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self._path, msgspec.json.encode(fresh) + b"\n")
        except OSError as error:
            raise Exhausted(
                f"{self._path}: cannot be written: {error.strerror}; nothing was changed"
            ) from None
        self._contents = fresh


def _read(path: Path) -> _Contents:
    try:
        found = msgspec.json.decode(read_state(path), type=_Contents)
    except FileNotFoundError:
        return _Contents()
    except (OSError, ValueError) as error:
        return _set_aside(path, str(error))
    numbers = [each.number for each in found.segments]
    if len(set(numbers)) != len(numbers) or found.next_number <= max(numbers, default=0):
        return _set_aside(path, f"numbers {numbers} are not those of segments")
    return found


def _set_aside(path: Path, why: str) -> _Contents:
    aside = path.with_suffix(".damaged")
    try:
        path.replace(aside)
    except OSError as error:
        log.error("segment list not moved away path=%s why=%s", path, error.strerror)  # noqa: TRY400 - its disk
    log.error(
        "segment list damaged path=%s kept_as=%s why=%s: this node starts with its own segment alone; "
        "add the others again, and remove their files",
        path,
        aside,
        why,
    )
    return _Contents()
