"""How much of the cluster each tenant has had lately, fading with time: who is over its fair share gives way first."""

from dataclasses import dataclass
from typing import Final

HALF_LIFE_S: Final = 30.0
ACTIVE_S: Final = 120.0
"""A tenant that had nothing for so long is none of those that share."""
MAX_TENANTS: Final = 4096
_REBASE_AT: Final = 2.0**40
_MOST_HALVES: Final = 1000
"""A double holds no more."""


@dataclass(slots=True)
class _Usage:
    grown: float
    """Work times 2^(time / half-life): what is new grows instead of all else fading, so that nothing is touched."""
    seen_s: float


class TenantShares:
    """O(1) for each request; asking changes nothing."""

    def __init__(self) -> None:
        self._usage: dict[str, _Usage] = {}
        """Whoever had work last stands last."""
        self._total = 0.0
        self._origin_s = 0.0

    def __len__(self) -> int:
        return len(self._usage)

    def add(self, tenant: str, work_s: float, *, now_s: float) -> None:
        """Instances will be busy so long for it."""
        growth: float = 2.0 ** min(_MOST_HALVES, (now_s - self._origin_s) / HALF_LIFE_S)
        if growth >= _REBASE_AT:
            self._rebase(growth, now_s)
            growth = 1.0
        used = self._usage.pop(tenant, _Usage(0.0, now_s))
        self._usage[tenant] = _Usage(used.grown + work_s * growth, now_s)
        self._total += work_s * growth
        while True:
            first = next(iter(self._usage))
            if len(self._usage) <= MAX_TENANTS and self._usage[first].seen_s >= now_s - ACTIVE_S:
                break
            self._total -= self._usage.pop(first).grown

    def of(self, tenant: str) -> float:
        """Its share, as a multiple of an equal one: 1 for all alike, and for one that is alone."""
        used = self._usage.get(tenant)
        if self._total <= 0:
            return 1.0
        if used is None:
            return 0.0
        return used.grown / self._total * len(self._usage)

    def _rebase(self, growth: float, now_s: float) -> None:
        """Before the numbers grow too large; also adds up anew what rounding has left in the sum."""
        for used in self._usage.values():
            used.grown /= growth
        self._total = sum(used.grown for used in self._usage.values())
        self._origin_s = now_s
