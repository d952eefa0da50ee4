"""What many blocks of a tier have in common, kept once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Kind(NamedTuple):
    """As in protocol.packed.BlockKind."""

    namespace: bytes
    model: str
    tenant: str


class Kinds:
    """By number, each kept once while any block has it. Not thread safe."""

    def __init__(self) -> None:
        self._ids: dict[Kind, int] = {}
        self._kinds: list[Kind | None] = []
        self._counts: list[int] = []

    def acquire(self, kind: Kind) -> int:
        kind_id = self._ids.get(kind)
        if kind_id is None:
            kind_id = self._ids[kind] = self._free_id()
            self._kinds[kind_id] = kind
        self._counts[kind_id] += 1
        return kind_id

    def release(self, kind_id: int) -> None:
        self._counts[kind_id] -= 1
        if not self._counts[kind_id]:
            del self._ids[self.get(kind_id)]
            self._kinds[kind_id] = None

    def load(self, kinds: Sequence[Kind], counts: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Into an empty one; the ids."""
        ids = np.zeros(len(kinds), np.uint32)
        for number, (kind, count) in enumerate(zip(kinds, map(int, counts), strict=True)):
            if count:
                ids[number] = self.acquire(kind)
                self._counts[ids[number]] = count
        return ids

    def get(self, kind_id: int) -> Kind:
        kind = self._kinds[kind_id]
        assert kind is not None, "a row in use has a kind"
        return kind

    def in_namespace(self, namespace: bytes) -> list[int]:
        return [kind_id for kind, kind_id in self._ids.items() if kind.namespace == namespace]

    def check_invariants(self, used: list[int]) -> None:
        assert {kind_id: used.count(kind_id) for kind_id in set(used)} == {
            kind_id: count for kind_id, count in enumerate(self._counts) if count
        }

    def _free_id(self) -> int:
        for kind_id, kind in enumerate(self._kinds):
            if kind is None:
                return kind_id
        self._kinds.append(None)
        self._counts.append(0)
        return len(self._kinds) - 1
