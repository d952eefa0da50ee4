"""Which nodes are being drained: admin state of this master, a small file that outlives it."""

import json
from pathlib import Path
from typing import Final

from daemons.core.errors import ConfigError, Exhausted
from daemons.core.ids import NodeId
from daemons.service.paths import write_durably

_FILE: Final = "draining.json"


class DrainList:
    """Raises ConfigError where the file cannot be read: a node must not get new blocks because of that."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._nodes = _read(self._path)

    @property
    def nodes(self) -> frozenset[NodeId]:
        return self._nodes

    def add(self, node: NodeId) -> None:
        """On disk before it returns. Raises Exhausted when it cannot be written; nothing has changed then."""
        self._keep(self._nodes | {node})

    def remove(self, node: NodeId) -> None:
        """As `add`."""
        self._keep(self._nodes - {node})

    def _keep(self, nodes: frozenset[NodeId]) -> None:
        if nodes == self._nodes:
            return
        try:
            write_durably(self._path, f"{json.dumps(sorted(nodes))}\n".encode())
        except OSError as error:
            raise Exhausted(
                f"{self._path}: cannot be written: {error.strerror}; nothing was changed"
            ) from None
        self._nodes = nodes


def _read(path: Path) -> frozenset[NodeId]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise _wrong(path, str(error)) from None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise _wrong(path, "it is no list of node ids")
    return frozenset(NodeId(each) for each in found)


def _wrong(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path}: not the list of draining nodes ({why}); correct or remove it")
