"""A set of node ids that outlives the master: a small file of lines in its state directory."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from daemons.core.ids import NodeId
from daemons.service.paths import read_state

log = logging.getLogger(__name__)


class KeptNodes:
    """For what a master can do without: one that cannot be read is logged, and empty; one that cannot be written is
    logged, stays as it was and is tried again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._nodes = _read(path)
        self._is_kept = True

    def __contains__(self, node: NodeId) -> bool:
        return node in self._nodes

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._nodes)

    def add(self, node: NodeId) -> None:
        if node not in self._nodes:
            self._nodes.add(node)
            self._write()

    def remove(self, node: NodeId) -> None:
        if node in self._nodes:
            self._nodes.remove(node)
            self._write()

    def retry(self) -> None:
        """Now and then: perhaps somebody has made room."""
        if not self._is_kept:
            self._write()

    def _write(self) -> None:
        """A crash leaves the old ids or these."""
        was_kept, self._is_kept = self._is_kept, False
        fresh = self._path.with_suffix(".new")
        try:
            fresh.unlink(missing_ok=True)  # whatever it is: a pipe would be waited for
            fresh.write_text("".join(f"{node}\n" for node in sorted(self._nodes)), "utf-8")
            fresh.replace(self._path)
            self._is_kept = True
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            if was_kept:
                log.warning("nodes not kept path=%s why=%s", self._path, error.strerror)


def _read(path: Path) -> set[NodeId]:
    try:
        return {NodeId(line) for line in read_state(path).decode("utf-8").splitlines() if line}
    except FileNotFoundError:
        return set()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("kept nodes not read path=%s why=%s", path, error)
        return set()
