"""What the tier needs of an object store: a flat space of keys that one node alone writes."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class StoredKey(NamedTuple):
    """One object there is."""

    key: str
    num_bytes: int


class ObjectBucket(Protocol):
    """Any thread. Each call ends within a bounded time, and raises Unavailable when it did not do what it says."""

    def put(self, key: str, body: memoryview) -> None:
        """Whole or not at all; there to stay when this returns."""

    def get(self, key: str, first: int = 0, length: int | None = None) -> memoryview:
        """Those bytes, or all. Raises NotFound, also where the object is too short."""

    def delete(self, keys: Sequence[str]) -> None:
        """Fine for those that are not there."""

    def of(self, node: str) -> "ObjectBucket":
        """Another node's keys, which this one only reads."""

    def list(self, prefix: str) -> Iterable[StoredKey]:
        """In the order of their names."""
