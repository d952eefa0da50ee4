"""Turns of large values: those that are put at once fit in the pool together, others wait in the order they came. Pure.

The chunks of a value stay while it is put, so two that each took half of a pool would wait for each other until both
fail. One that is alone may always begin: whether it fits is for the nodes to say.
"""

from dataclasses import dataclass
from typing import Final

from daemons.core.ids import BlockHash

PATIENCE_S: Final = 1.0
"""Who waits asks again many times in it; who did not has gone, and loses its place."""
MAX_OVER: Final = 10_000
"""Puts that were not heard of in time. The oldest beyond it are forgotten: should one go on, nobody stops it."""


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """Why one may not begin yet: so many others are being put, and so many that wait came before."""

    num_held: int
    held_bytes: int
    num_before: int


@dataclass(slots=True)
class _Held:
    num_bytes: int
    until_s: float


@dataclass(frozen=True, slots=True)
class EndedPut:
    """It was not heard of in time: its chunks may go."""

    key: BlockHash
    version: int
    num_bytes: int


class LargePuts:
    """Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._held: dict[BlockHash, dict[int, _Held]] = {}
        """By version: of one that is replaced twice at once both are being put."""
        self._num_held = self._held_bytes = 0
        self._waiting: dict[BlockHash, float] = {}
        """In the order they came: when each asked last."""
        self._over: dict[tuple[BlockHash, int], None] = {}

    def __bool__(self) -> bool:
        """Whether any is being put."""
        return bool(self._held)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def may_begin(
        self, key: BlockHash, num_bytes: int, *, room_bytes: int, now_s: float
    ) -> WaitsFor | None:
        """None where it may. `room_bytes`: what the pool can make free for all of them together."""
        self._forget_gone(now_s)
        num_before = next((n for n, each in enumerate(self._waiting) if each == key), None)
        if num_before is None:
            num_before = len(self._waiting)
        fits = not self._held or self._held_bytes + num_bytes <= room_bytes
        if fits and not num_before:
            return None
        return WaitsFor(self._num_held, self._held_bytes, num_before)

    def wait(self, key: BlockHash, *, now_s: float) -> None:
        """It has its place among those that wait as long as it asks."""
        self._waiting[key] = now_s

    def hold(self, key: BlockHash, version: int, num_bytes: int, *, until_s: float) -> None:
        """It is being put, or still is."""
        self._waiting.pop(key, None)
        held = self._held.setdefault(key, {}).get(version)
        if held is not None:
            held.until_s = until_s
            return
        self._held[key][version] = _Held(num_bytes, until_s)
        self._num_held += 1
        self._held_bytes += num_bytes

    def end(self, key: BlockHash, version: int) -> int:
        """It was given up; its bytes, 0 where it was not being put."""
        held = self._held.get(key, {}).pop(version, None)
        if held is None:
            return 0
        if not self._held[key]:
            del self._held[key]
        self._num_held -= 1
        self._held_bytes -= held.num_bytes
        return held.num_bytes

    def end_up_to(self, key: BlockHash, version: int) -> None:
        """This version is sealed, or dead, and all before it with it."""
        for each in [each for each in self._held.get(key, ()) if each <= version]:
            self.end(key, each)

    def is_over(self, key: BlockHash, version: int) -> bool:
        """Whether it was not heard of in time: some of its chunks may be gone."""
        return (key, version) in self._over

    def extend(self, by_s: float, *, now_s: float) -> None:
        """Of those that were held `by_s` ago: nobody could be heard since."""
        for versions in self._held.values():
            for held in versions.values():
                if held.until_s > now_s - by_s:
                    held.until_s += by_s
        self._waiting = {key: asked_s + by_s for key, asked_s in self._waiting.items()}

    def expire(self, now_s: float) -> list[EndedPut]:
        """Those that were not heard of in time are over."""
        over = [
            EndedPut(key, version, held.num_bytes)
            for key, versions in self._held.items()
            for version, held in versions.items()
            if held.until_s <= now_s
        ]
        for each in over:
            self.end(each.key, each.version)
            self._over[each.key, each.version] = None
            if len(self._over) > MAX_OVER:
                del self._over[next(iter(self._over))]
        return over

    def check_invariants(self) -> None:
        held = [each for versions in self._held.values() for each in versions.values()]
        assert all(self._held.values()), "a key without a version"
        assert self._num_held == len(held)
        assert self._held_bytes == sum(each.num_bytes for each in held)

    def _forget_gone(self, now_s: float) -> None:
        if self._waiting and min(self._waiting.values()) + PATIENCE_S < now_s:
            self._waiting = {k: t for k, t in self._waiting.items() if t + PATIENCE_S >= now_s}
