"""Where a node's index lies: one file of a directory, which a new version replaces in one step."""

import contextlib
import os
from pathlib import Path
from typing import Protocol


class IndexFiles(Protocol):
    """At most one draft of the next version is beside the index. Who gets a descriptor closes it."""

    @property
    def name(self) -> str:
        """For log lines."""

    def new_draft(self) -> int:
        """Empty, to be appended to, in place of an earlier draft. Raises OSError."""

    def replace(self, draft: int) -> None:
        """The draft is complete and is the index from now on. Raises OSError."""

    def drop_draft(self) -> None:
        """Whether or not there is one."""

    def remove(self) -> None:
        """The next process finds no index."""


class IndexInDirectory:
    """`path`, and beside it the draft."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._draft_path = path.with_name(f"{path.name}.new")

    @property
    def name(self) -> str:
        return str(self.path)

    def new_draft(self) -> int:
        self._draft_path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(self._draft_path, flags, 0o600)

    def replace(self, draft: int) -> None:
        del draft
        self._draft_path.replace(self.path)

    def drop_draft(self) -> None:
        _remove(self._draft_path)

    def remove(self) -> None:
        _remove(self.path)


def _remove(path: Path) -> None:
    """Where that is not possible it stays: what it claims is held against the trailers."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
