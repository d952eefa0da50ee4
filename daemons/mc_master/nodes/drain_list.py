"""Which nodes are being drained: admin state of this master, a small file that outlives it."""

from pathlib import Path
from typing import Final

import msgspec

from daemons.core.errors import ConfigError, Exhausted
from daemons.core.ids import NodeId
from daemons.service.paths import read_state, write_durably

_FILE: Final = "draining.json"
_decode = msgspec.json.Decoder(list[str]).decode


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
            write_durably(self._path, msgspec.json.encode(sorted(nodes)) + b"\n")
        except OSError as error:
            raise Exhausted(
                f"{self._path}: cannot be written: {error.strerror}; nothing was changed"
            ) from None
        self._nodes = nodes


def _read(path: Path) -> frozenset[NodeId]:
    try:
        return frozenset(NodeId(each) for each in _decode(read_state(path)))
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: not the list of draining nodes ({error}); correct or remove it"
        ) from None
