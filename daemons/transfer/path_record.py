"""One way to a peer as it has turned out: how fast, how full, whether it failed. Pure; calls take the time.

A path that fails pauses, twice as long each time, and then gets one slice to show that it works again.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from daemons.core.units import KIB, MIB

ASSUMED_BYTES_PER_S: Final = 1.25e9
"""Of a link whose speed nobody knows."""


@dataclass(frozen=True, slots=True)
class Path:
    """A way to the peer. `bytes_per_s` is the link's speed; what share of it is reached is learnt from all paths."""

    name: str
    bytes_per_s: float = ASSUMED_BYTES_PER_S
    max_in_flight: int = 16


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """How paths are weighed, and given up."""

    far_penalty: float = 4.0
    """A far path is taken when it would be done this many times sooner."""
    rate_weight: float = 0.25
    """Of a new measurement in the moving average."""
    sample_bytes: int = MIB
    """Carried before a rate is believed."""
    sample_slice_bytes: int = 256 * KIB
    """Shorter slices measure the latency."""
    forget_s: float = 5.0
    """An unused path's rate goes back to what is assumed with this time constant, so that it is tried again."""
    pause_s: float = 0.25
    max_pause_s: float = 30.0
    max_attempts: int = 4
    """Of one slice."""


PathState = Literal["up", "paused", "due"]
"""due: the pause is over and one slice may try it."""


@dataclass(frozen=True, slots=True)
class PathView:
    """For metrics and people."""

    name: str
    state: PathState
    bytes_per_s: float
    outstanding_bytes: int
    num_in_flight: int
    num_failures: int
    pause_s: float
    carried_bytes: int


@dataclass(slots=True, eq=False)
class PathRecord:
    """Changed by the book that it is in, one slice at a time."""

    path: Path
    rate: float | None = None
    """As measured."""
    outstanding_bytes: int = 0
    num_in_flight: int = 0
    num_failures: int = 0
    carried_bytes: int = 0
    pause_s: float = 0.0
    """Length of the pause it is in; 0 while it is up."""
    paused_until_s: float = 0.0
    has_trial: bool = False
    sample_bytes: int = 0
    sample_s: float = 0.0
    busy_since_s: float = 0.0
    last_used_s: float = -math.inf

    @property
    def has_room(self) -> bool:
        return self.num_in_flight < self.path.max_in_flight

    @property
    def may_try(self) -> bool:
        """One slice at a time shows whether a paused path works again."""
        return self.has_room and not self.has_trial

    def state(self, now_s: float) -> PathState:
        if not self.pause_s:
            return "up"
        return "paused" if now_s < self.paused_until_s else "due"

    def current_rate(self, policy: PathPolicy, now_s: float, efficiency: float) -> float:
        """`efficiency` is how much of a link's speed the best path reaches."""
        assumed = self.path.bytes_per_s * efficiency
        if self.rate is None:
            return assumed
        if self.num_in_flight:
            return self.rate
        idle_s = max(now_s - self.last_used_s, 0.0)
        return self.rate + (assumed - self.rate) * -math.expm1(-idle_s / policy.forget_s)

    def view(self, policy: PathPolicy, now_s: float, efficiency: float) -> PathView:
        return PathView(
            name=self.path.name,
            state=self.state(now_s),
            bytes_per_s=self.current_rate(policy, now_s, efficiency),
            outstanding_bytes=self.outstanding_bytes,
            num_in_flight=self.num_in_flight,
            num_failures=self.num_failures,
            pause_s=self.pause_s,
            carried_bytes=self.carried_bytes,
        )

    def begin(self, length: int, now_s: float, rate: float) -> None:
        """A slice goes out; `rate` is what it is taken to have now."""
        if self.rate is not None:
            self.rate = rate
        if not self.num_in_flight:
            self.busy_since_s = now_s
        self.last_used_s = now_s
        self.num_in_flight += 1
        self.outstanding_bytes += length
        self.has_trial = self.has_trial or bool(self.pause_s)

    def end(self, length: int, now_s: float, *, is_trial: bool) -> None:
        """It is no longer under way, whatever became of it."""
        # Time in which the path had anything to do, whatever number of slices shared it.
        self.sample_s += max(now_s - self.busy_since_s, 0.0)
        self.busy_since_s = self.last_used_s = now_s
        self.num_in_flight -= 1
        self.outstanding_bytes -= length
        if is_trial:
            self.has_trial = False

    def learn(self, length: int, policy: PathPolicy) -> bool:
        """A slice arrived; whether the rate has been measured anew by it."""
        self.carried_bytes += length
        self.sample_bytes += length
        if length < policy.sample_slice_bytes:
            self.sample_bytes, self.sample_s = 0, 0.0
        if self.sample_bytes < policy.sample_bytes or self.sample_s <= 0:
            return False
        rate, weight = self.sample_bytes / self.sample_s, policy.rate_weight
        self.rate = rate if self.rate is None else self.rate + weight * (rate - self.rate)
        self.sample_bytes, self.sample_s = 0, 0.0
        return True

    def blame(self, policy: PathPolicy, now_s: float, *, is_trial: bool) -> None:
        """Slices that fail together because their path broke count once: only a trial prolongs a pause."""
        self.num_failures += 1
        self.sample_bytes, self.sample_s = 0, 0.0
        if self.pause_s and not is_trial:
            return
        self.pause_s = min(self.pause_s * 2 or policy.pause_s, policy.max_pause_s)
        self.paused_until_s = now_s + self.pause_s
