"""Limits of one tenant: rates that refill, requests at once, tokens of a day. Pure: the caller says what time it is.

What a request may use at most is taken when it is admitted, and what it did not use is given back when it ends, so
that many requests at once cannot overdraw what one after another could not.
"""

import math
from dataclasses import dataclass
from typing import Final

from daemons.config.tenants import Tenant

_MINUTE_S: Final = 60.0
_BUSY_S: Final = 1


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, and when to come back."""

    why: str
    code: str
    retry_after_s: int


@dataclass(slots=True)
class Bucket:
    """Holds a minute's worth; 0 a minute is no limit."""

    per_minute: int
    level: float = 0.0
    filled_s: float = 0.0

    def wait_s(self, wanted: float, now_s: float) -> float:
        """0 when it is there. More than fits is there when the bucket is full: then it is overdrawn."""
        if not self.per_minute:
            return 0.0
        rate = self.per_minute / _MINUTE_S
        self.level = min(float(self.per_minute), self.level + (now_s - self.filled_s) * rate)
        self.filled_s = now_s
        return max(0.0, (min(wanted, self.per_minute) - self.level) / rate)

    def take(self, wanted: float) -> None:
        if self.per_minute:
            self.level -= wanted

    def resize(self, per_minute: int) -> None:
        """Full at once where there was no limit before."""
        self.level = min(self.level, per_minute) if self.per_minute else float(per_minute)
        self.per_minute = per_minute


class Limiter:
    """Of one tenant, for as long as the gateway runs. `used_today` is what earlier lives of it counted."""

    def __init__(self, tenant: Tenant, *, now_s: float) -> None:
        self.tenant = tenant
        self.num_running = 0
        self._requests = Bucket(0, 0.0, now_s)
        self._tokens = Bucket(0, 0.0, now_s)
        self._day = ""
        self._used_today = 0
        self.change(tenant)

    def change(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self._requests.resize(tenant.requests_per_minute)
        self._tokens.resize(tenant.tokens_per_minute)

    def count_before(self, day: str, num_tokens: int) -> None:
        self._day, self._used_today = day, num_tokens

    def begin(self, now_s: float) -> Refusal | None:
        """A request has come; what it costs is not known yet. Every `begin` that is not refused has its `end`."""
        if self.tenant.max_requests and self.num_running >= self.tenant.max_requests:
            why = f"{self.num_running} requests of this tenant run already"
            return Refusal(why, "too_many_requests", _BUSY_S)
        wait_s = self._requests.wait_s(1, now_s)
        if wait_s > 0:
            why = f"more than {self.tenant.requests_per_minute} requests a minute"
            return Refusal(why, "rate_limit_exceeded", math.ceil(wait_s))
        self._requests.take(1)
        self.num_running += 1
        return None

    def end(self) -> None:
        self.num_running -= 1

    def reserve(self, num_tokens: int, now_s: float, today: tuple[str, float]) -> Refusal | None:
        """Take what the request may use at most; `today` is the day, and how many seconds are left of it."""
        self._turn_to(today[0])
        quota = self.tenant.tokens_per_day
        if quota and self._used_today + num_tokens > quota:
            why = (
                f"{self._used_today} of {quota} tokens of today are used or asked for, "
                f"and this request may use {num_tokens}"
            )
            return Refusal(why, "quota_exceeded", math.ceil(today[1]))
        wait_s = self._tokens.wait_s(num_tokens, now_s)
        if wait_s > 0:
            why = f"more than {self.tenant.tokens_per_minute} tokens a minute"
            return Refusal(why, "rate_limit_exceeded", math.ceil(wait_s))
        self._tokens.take(num_tokens)
        self._used_today += num_tokens
        return None

    def settle(self, reserved: int, used: int, day: str) -> None:
        """Give back what was not used."""
        self._tokens.take(used - reserved)
        if day == self._day:
            self._used_today += used - reserved

    def _turn_to(self, day: str) -> None:
        if day != self._day:
            self._day, self._used_today = day, 0
