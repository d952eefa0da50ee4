"""What every name may hold: the values that were tried, and the last one that was acknowledged.

A value says which try it is, and all its bytes follow from that, so a reader can tell right bytes from wrong ones, and
a value that was replaced or deleted from one that may be there. One thread writes a name, and reads its own writes; the
others may hear of them a little later, for nodes report in batches and clients keep locations for a while.
"""

import struct
import threading
import time
from dataclasses import dataclass, field

import numpy as np

_HEADER = struct.Struct("<QQQ")
"""Number of the name, of the try, length."""


def value_of(name: int, attempt: int, length: int) -> bytes:
    """The bytes of a try; `length` counts all of them and is at least 24."""
    seed = np.random.default_rng((name, attempt))
    body = seed.integers(0, 256, length - _HEADER.size, np.uint8).tobytes()
    return _HEADER.pack(name, attempt, length) + body


def attempt_of(name: int, value: bytes) -> int:
    """Which try these bytes are. Raises AssertionError for bytes that were never put under the name."""
    assert len(value) >= _HEADER.size, f"name {name}: {len(value)} bytes that nobody put"
    found, attempt, length = _HEADER.unpack_from(value)
    assert found == name, f"name {name}: the value of name {found}"
    assert value == value_of(name, attempt, length), f"name {name}: torn value of try {attempt}"
    return int(attempt)


LATE_S = 15.0
"""Longer than any stop of a node or the master, and than a client keeps a location."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A try that had its answer, and what it left behind."""

    attempt: int
    is_deleted: bool
    at_s: float


@dataclass(slots=True, eq=False)
class NameModel:
    """Tries are numbered from 1."""

    number: int
    attempt: int = 0
    history: list[Acknowledged] = field(default_factory=lambda: [Acknowledged(0, True, 0.0)])
    """The last one is what the writer reads."""
    is_sure: bool = True
    """No try after the floor has an unknown end."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> int:
        with self.lock:
            self.attempt += 1
            self.is_sure = False
            return self.attempt

    def acknowledged(self, attempt: int, *, is_deleted: bool) -> None:
        with self.lock:
            self.history.append(Acknowledged(attempt, is_deleted, time.monotonic()))
            self.is_sure = True

    def refused(self) -> None:
        """The try of just now did nothing, for sure."""
        with self.lock:
            self.is_sure = True

    def last(self, *, is_own: bool) -> Acknowledged:
        """Below what this leaves behind nothing may be read from now on, by the writer or by others."""
        with self.lock:
            if is_own:
                return self.history[-1]
            due_s = time.monotonic() - LATE_S
            return next(each for each in reversed(self.history) if each.at_s <= due_s)

    def check(self, value: bytes, last: Acknowledged) -> None:
        """`last` is that of when the read began. Raises AssertionError for what must not be read."""
        attempt = attempt_of(self.number, value)
        what = f"name {self.number}: try {attempt} came back after try {last.attempt}"
        assert attempt >= last.attempt, f"{what} was acknowledged {_ago(last)}"
        is_back = attempt == last.attempt and last.is_deleted
        assert not is_back, f"{what} had deleted it {_ago(last)}"

    @property
    def must_exist(self) -> bool:
        """Once all nodes are back and well."""
        with self.lock:
            return self.is_sure and not self.history[-1].is_deleted


def _ago(last: Acknowledged) -> str:
    return f"{time.monotonic() - last.at_s:.1f} s ago"
