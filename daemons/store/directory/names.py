"""Versions of named objects: who may put one next, and which versions are dead. Pure.

A version is (incarnation, counter) in 64 bits, so a later master's are above all earlier ones. What was deleted or
replaced is remembered as the highest version that is dead, by the master and, logged, by every cache node.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash, Incarnation
from daemons.store.directory.large_puts import LargePuts
from daemons.store.directory.tombstones import TTL_S

COUNTER_BITS: Final = 40
MAX_INCARNATION: Final = 1 << 23
"""Said by a node. A master that met it steps down and comes back above it, with as many lives left."""
_MAX_GIVEN: Final = 1 << (COUNTER_BITS - 1)
"""No master gets to so many in its life."""
MAX_DEAD: Final = 200_000
"""Some 200 bytes each. Beyond it the oldest is forgotten: a node that was away since may bring that one back."""
MAX_RESERVED: Final = 100_000
MAX_LATE: Final = 100_000
"""Puts that ended without a seal. The oldest beyond it are forgotten: should one be sealed then, it counts as put."""


def incarnation_of(version: int) -> Incarnation:
    """Of the master that gives this version out."""
    return Incarnation(version >> COUNTER_BITS)


def may_be_given(version: int) -> bool:
    """False for a number that no master ever gives out: somebody made it up."""
    is_counted = version & ((1 << COUNTER_BITS) - 1) < _MAX_GIVEN
    return is_counted and incarnation_of(version) <= MAX_INCARNATION


class DeadNames:
    """For each key the highest version that must not come back. Times are seconds of the caller's clock."""

    def __init__(self, max_names: int = MAX_DEAD) -> None:
        self._dead: dict[BlockHash, tuple[int, float]] = {}
        self._max_names = max_names

    def __len__(self) -> int:
        return len(self._dead)

    def __iter__(self) -> Iterator[tuple[BlockHash, int, float]]:
        return ((key, version, at_s) for key, (version, at_s) in self._dead.items())

    def add(self, key: BlockHash, version: int, at_s: float) -> bool:
        """False when that was known."""
        known = self._dead.get(key)
        if known is not None:
            if known[0] >= version:
                return False
            del self._dead[key]  # to the end: the oldest is the first
        self._dead[key] = (version, at_s)
        if len(self._dead) > self._max_names:
            del self._dead[next(iter(self._dead))]
        return True

    def version_of(self, key: BlockHash) -> int:
        """0 when nothing of this name is dead."""
        known = self._dead.get(key)
        return 0 if known is None else known[0]

    def remove(self, key: BlockHash) -> None:
        self._dead.pop(key, None)

    def expire(self, now_s: float) -> None:
        """Forget those of more than TTL_S ago, which are the first ones but for those learned late."""
        while self._dead:
            key = next(iter(self._dead))
            if now_s - self._dead[key][1] <= TTL_S:
                return
            del self._dead[key]


@dataclass(slots=True)
class _Reservation:
    version: int
    until_s: float
    replaces: bool = True
    """Whether an older version may be there."""


class NameTable:
    """The master's: counts versions, holds reservations while their puts run, and remembers those that ended unsealed:
    what was sent to a node may arrive long after who sent it was told that it failed.
    """

    def __init__(self, incarnation: Incarnation) -> None:
        self.dead = DeadNames()
        self._late = DeadNames(MAX_LATE)
        """Of each name the highest version that may still be sealed after its time, or though another is being put."""
        self._given_up: dict[tuple[BlockHash, int], float] = {}
        self._incarnation = incarnation
        self._last = incarnation << COUNTER_BITS
        self._reserved: dict[BlockHash, _Reservation] = {}
        self.large = LargePuts()

    def lived_with(self, version: int) -> Incarnation | None:
        """Of the master that gave this version out, where that was another one than this, and no earlier one."""
        return incarnation_of(version) if version > self._last else None

    def was_given(self, version: int) -> bool:
        """By this master, or an earlier one."""
        return 0 < version <= self._last and may_be_given(version)

    def skip_to(self, version: int) -> None:
        """What follows is above this one of this incarnation, which was not given out here. One that was made up is
        passed over: it would leave no numbers.
        """
        if may_be_given(version) and incarnation_of(version) == self._incarnation:
            self._last = max(self._last, version)

    def next_version(self) -> int:
        """Raises Exhausted where no number is left."""
        if self._incarnation >= 1 << (64 - COUNTER_BITS):
            raise Exhausted(
                f"incarnation {self._incarnation} leaves no room for versions of objects; "
                "give the cluster a new one: stop its master and nodes, remove their state"
            )
        self._last += 1
        return self._last

    def reserve(
        self, key: BlockHash, *, now_s: float, hold_s: float, replaces: bool = False
    ) -> int:
        """A new version, which takes the place of a reservation of this name. Raises Exhausted."""
        if len(self._reserved) >= MAX_RESERVED:
            self.expire(now_s)
            if len(self._reserved) >= MAX_RESERVED:
                raise Exhausted(f"{MAX_RESERVED} names are being put", retry_after_ms=200)
        version = self.next_version()
        self._make_way(key, now_s)
        self._reserved[key] = _Reservation(version, now_s + hold_s, replaces)
        return version

    def renew(self, key: BlockHash, version: int, *, now_s: float, hold_s: float) -> bool:
        """Hold it longer, also one that an earlier master gave out; False when another put has it, or it is dead."""
        held = self._reserved.get(key)
        if held is not None and held.version > version:
            return False
        if self.dead.version_of(key) >= version or (key, version) in self._given_up:
            return False
        if held is not None and held.version < version:
            self._make_way(key, now_s)
        replaces = held is None or held.version < version or held.replaces
        self._reserved[key] = _Reservation(version, now_s + hold_s, replaces)
        return True

    def extend(self, by_s: float, *, now_s: float) -> None:
        """Of reservations that were held `by_s` ago: nobody could renew them since."""
        for held in self._reserved.values():
            if held.until_s > now_s - by_s:
                held.until_s += by_s
        self.large.extend(by_s, now_s=now_s)

    def is_reserved(self, key: BlockHash, *, now_s: float) -> bool:
        held = self._reserved.get(key)
        return held is not None and held.until_s > now_s

    def is_held(self, key: BlockHash, version: int, *, now_s: float) -> bool:
        """Whether a put of this version may still be under way."""
        held = self._reserved.get(key)
        return held is not None and held.version == version and held.until_s > now_s

    def give_up(self, key: BlockHash, version: int, *, now_s: float) -> None:
        """Who puts this version was told that it failed. It is refused should it be sealed later, but for one that may
        take the place of an older version: that is gone by then.
        """
        held = self._reserved.get(key)
        if held is None or held.version != version:
            self._late.add(key, version, now_s)
            return
        self._make_way(key, now_s)
        if held.replaces:
            return
        self._given_up[key, version] = now_s
        if len(self._given_up) > MAX_LATE:
            del self._given_up[next(iter(self._given_up))]

    def is_given_up(self, key: BlockHash, version: int) -> bool:
        return bool(self._given_up) and (key, version) in self._given_up

    def may_be_sealed(self, key: BlockHash) -> bool:
        """Whether a put of this name has begun and was neither sealed nor deleted as far as is known here."""
        return key in self._reserved or self._late.version_of(key) > 0

    def release(self, key: BlockHash, version: int) -> bool:
        """This version is sealed, or all up to it are dead: a put of a higher one goes on, all others have ended.

        True where lower ones may still be sealed somewhere, which are to be dead then.
        """
        held = self._reserved.get(key)
        if held is not None and held.version <= version:
            del self._reserved[key]
        if self.large:
            self.large.end_up_to(key, version)
        is_behind = held is not None and held.version < version
        late = self._late.version_of(key)
        if 0 < late <= version:
            self._late.remove(key)
        return is_behind or late > 0

    def expire(self, now_s: float) -> None:
        over = [key for key, held in self._reserved.items() if held.until_s <= now_s]
        for key in over:
            self._make_way(key, now_s)
        self.dead.expire(now_s)
        self._late.expire(now_s)
        while self._given_up:
            first = next(iter(self._given_up))
            if now_s - self._given_up[first] <= TTL_S:
                break
            del self._given_up[first]

    def _make_way(self, key: BlockHash, now_s: float) -> None:
        """The reservation ends; its put may go on."""
        held = self._reserved.pop(key, None)
        if held is not None:
            self._late.add(key, held.version, now_s)
