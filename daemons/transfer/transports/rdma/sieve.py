"""SIEVE (Zhang et al., NSDI 2024): evicts what was not used since the hand last passed; a use costs one bit. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Sieve(Generic[T]):
    """Members from newest to oldest; the hand walks from the oldest towards the newest and wraps."""

    _members: list[T] = field(default_factory=list)
    _visited: set[int] = field(default_factory=set)
    _hand: int = -1
    """Index of the member looked at next, counted from the newest; -1: the oldest."""

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: T) -> None:
        self._members.insert(0, member)
        if self._hand >= 0:
            self._hand += 1

    def visit(self, member: T) -> None:
        self._visited.add(id(member))

    def remove(self, member: T) -> None:
        """Forget a member that ended for another reason."""
        for index, other in enumerate(self._members):
            if other is member:
                self._drop(index)
                return

    def evict(self, may_go: Callable[[T], bool]) -> T | None:
        """Take out the first member, from the hand on, that was not visited and may go; None where none may."""
        # Twice round: the first pass may only clear bits.
        for _ in range(2 * len(self._members)):
            if not 0 <= self._hand < len(self._members):
                self._hand = len(self._members) - 1
            member = self._members[self._hand]
            if not may_go(member):
                self._hand -= 1
            elif id(member) in self._visited:
                self._visited.discard(id(member))
                self._hand -= 1
            else:
                self._drop(self._hand)
                return member
        return None

    def _drop(self, index: int) -> None:
        self._visited.discard(id(self._members[index]))
        del self._members[index]
        # The hand keeps pointing at the next newer member.
        if index <= self._hand:
            self._hand -= 1
