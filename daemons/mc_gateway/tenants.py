"""Who may come in, how much each may use, and what each has used. Coroutines' thread.

Without a tenant file everybody may, and nothing is written down.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from daemons.config.tenants import ApiKey, ModelPrice, TenantFile, hash_of, read_tenants
from daemons.config.usage import day_of
from daemons.core.clock import Clock
from daemons.core.errors import ConfigError
from daemons.mc_gateway.api_error import ApiError
from daemons.mc_gateway.limits import Limiter, Refusal
from daemons.mc_gateway.usage import UsageLog
from daemons.protocol.address import is_loopback

log = logging.getLogger(__name__)

CHECK_S: Final = 0.2
"""How long a change of the file may go unseen."""
_SCHEME: Final = "bearer "
_FORWARDING: Final = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip")


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is."""

    key: ApiKey
    limiter: Limiter


class TenantBook:
    """The file as it is now. Raises ConfigError when made with one that is none; later that changes nothing."""

    def __init__(self, path: Path, usage: UsageLog, clock: Clock) -> None:
        self._path = path
        self._usage = usage
        self._clock = clock
        self._stamp = _stamp_of(path)
        self._checked_s = clock()
        self._callers: dict[str, Caller] = {}
        """By hash of the API key."""
        self._limiters: dict[str, Limiter] = {}
        self._prices: dict[str, ModelPrice] = {}
        self._take(read_tenants(path))

    def find(self, scope: Scope) -> Caller:
        """Raises ApiError 401."""
        self._refresh()
        given = Headers(scope=scope).get("authorization", "")
        if not given.lower().startswith(_SCHEME):
            raise _unknown(
                "send an API key: Authorization: Bearer KEY; mcctl takes it from MCCTL_API_KEY"
            )
        caller = self._callers.get(hash_of(given[len(_SCHEME) :].strip()))
        if caller is None:
            raise _unknown("this API key is not known, or was revoked")
        return caller

    def price(self, model: str) -> ModelPrice:
        return self._prices.get(model) or self._prices.get("*") or ModelPrice(model=model)

    def _refresh(self) -> None:
        now_s = self._clock()
        if now_s - self._checked_s < CHECK_S:
            return
        self._checked_s = now_s
        stamp = _stamp_of(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._take(read_tenants(self._path))
        except ConfigError as error:
            log.error("tenants unchanged why=%s", error.message)  # noqa: TRY400 - an operator's slip

    def _take(self, tenants: TenantFile) -> None:
        day = day_of(self._usage.wall())
        limiters: dict[str, Limiter] = {}
        for tenant in tenants.tenant:
            limiter = self._limiters.get(tenant.name)
            if limiter is None:
                limiter = Limiter(tenant, now_s=self._clock())
                limiter.count_before(day, self._usage.used(tenant.name, day))
            limiter.change(tenant)
            limiters[tenant.name] = limiter
        self._limiters = limiters
        self._prices = {price.model: price for price in tenants.price}
        self._callers = {
            key.hash: Caller(key, limiters[key.tenant]) for key in tenants.key if not key.revoked
        }
        log.info(
            "tenants read file=%s tenants=%d keys=%d", self._path, len(limiters), len(self._callers)
        )


def refused(refusal: Refusal) -> ApiError:
    return ApiError(429, refusal.why, code=refusal.code, retry_after_s=refusal.retry_after_s)


def may_read_metrics(scope: Scope, *, is_open: bool) -> bool:
    """One tenant must not read another's figures; a scraper on this host may, a proxy for somebody else may not."""
    client = scope.get("client")
    is_passed_on = any(name in _FORWARDING for name, _ in scope.get("headers", ()))
    return is_open or (client is not None and is_loopback(client[0]) and not is_passed_on)


def _unknown(why: str) -> ApiError:
    return ApiError(401, why, code="invalid_api_key")


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
