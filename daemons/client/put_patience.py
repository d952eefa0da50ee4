"""How long a KV slot is held for puts alone. Loop thread only.

A put in flight holds the slot it is pulled from, and a cache node that hangs would hold it until the put's deadline.
While nobody wants the room that costs nothing. Once somebody waits for it, the slot is given up after a time: its
generation is raised before it is used again, so the node refuses what it reads from then on, a later miss.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from daemons.rpc import Loop, Timer

Holder = TypeVar("Holder")


class PutPatience(Generic[Holder]):
    """Knows whose slots nothing but puts hold, and since when."""

    def __init__(self, loop: Loop, hold_s: float, on_due: Callable[[], object]) -> None:
        """`on_due` is called once one may be given up that could not before; it asks again."""
        self._loop = loop
        self._hold_s = hold_s
        self._on_due = on_due
        self._since_s: dict[Holder, float] = {}
        """In order of time."""
        self._timer: Timer | None = None

    def begin(self, holder: Holder) -> None:
        """From now on only puts hold its slot. Idempotent."""
        self._since_s.setdefault(holder, self._loop.clock())

    def end(self, holder: Holder) -> None:
        """Its slot is free. Fine for an unknown one."""
        self._since_s.pop(holder, None)

    def take_due(self) -> Holder | None:
        """Somebody waits for room: whose slot is to be given up now. With None, `on_due` follows if one will be."""
        if not self._since_s:
            return None
        holder, since_s = next(iter(self._since_s.items()))
        left_s = since_s + self._hold_s - self._loop.clock()
        if left_s <= 0:
            del self._since_s[holder]
            return holder
        if self._timer is None:
            self._timer = self._loop.call_later(left_s, self._fire)
        return None

    def _fire(self) -> None:
        self._timer = None
        self._on_due()
