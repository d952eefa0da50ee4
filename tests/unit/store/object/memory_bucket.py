"""An object store in memory that fails when told to: before it did what it was asked, or after, like a lost answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from daemons.core.errors import NotFound, Unavailable
from daemons.store.object import StoredKey

Fault = Literal["before", "after"]


@dataclass
class MemoryBucket:
    """`faults`: of the next calls that change something, None for those that succeed."""

    objects: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault | None] = field(default_factory=list)
    is_down: bool = False
    num_puts: int = 0

    others: dict[str, "MemoryBucket"] = field(default_factory=dict)

    def of(self, node: str) -> "MemoryBucket":
        return self.others[node]

    def put(self, key: str, body: memoryview) -> None:
        fault = self._begin()
        assert key not in self.objects, "no key is written twice"
        self.objects[key] = bytes(body)
        self.num_puts += 1
        self._end(fault)

    def get(self, key: str, first: int = 0, length: int | None = None) -> memoryview:
        if self.is_down:
            raise Unavailable("down")
        if key not in self.objects:
            raise NotFound(key)
        body = self.objects[key]
        if length is None:
            return memoryview(body)
        if first + length > len(body):
            raise NotFound(key)
        return memoryview(body[first : first + length])

    def delete(self, keys: Sequence[str]) -> None:
        fault = self._begin()
        for key in keys:
            self.objects.pop(key, None)
        self._end(fault)

    def list(self, prefix: str) -> Iterable[StoredKey]:
        if self.is_down:
            raise Unavailable("down")
        return [
            StoredKey(key, len(body))
            for key, body in sorted(self.objects.items())
            if key.startswith(prefix)
        ]

    def _begin(self) -> Fault | None:
        fault = self.faults.pop(0) if self.faults else None
        if self.is_down or fault == "before":
            raise Unavailable("down")
        return fault

    def _end(self, fault: Fault | None) -> None:
        if fault == "after":
            raise Unavailable("the answer was lost")
