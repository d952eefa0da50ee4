"""Tenants as verbs of `mcctl tenant` show them."""

from collections.abc import Mapping

import msgspec
import typer

from daemons.config.tenants import ApiKey, Tenant, TenantFile
from daemons.protocol.tenant import PoolUsage
from mcctl import render
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.tenants import pool as tenant_pool


class ListedTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `tenant list`; fields are only ever added. Keys by their beginnings."""

    name: str
    requests_per_minute: int
    tokens_per_minute: int
    tokens_per_day: int
    max_requests: int
    keys: list[str]
    revoked_keys: list[str]
    pool: PoolUsage | None = None
    """None where no master answers."""


def show_tenants(
    context: typer.Context,
    tenants: TenantFile,
    only: str | None = None,
    pool: Mapping[str, PoolUsage] | None = None,
    title: str = "",
) -> None:
    rows = [
        _listed(tenant, tenants.key, (pool or {}).get(tenant.name))
        for tenant in tenants.tenant
        if only in (None, tenant.name)
    ]
    columns = [
        Column("tenant", lambda t: t.name),
        Column("requests/min", lambda t: _limit(t.requests_per_minute), is_number=True),
        Column("tokens/min", lambda t: _limit(t.tokens_per_minute), is_number=True),
        Column("tokens/day", lambda t: _limit(t.tokens_per_day), is_number=True),
        Column("at once", lambda t: _limit(t.max_requests), is_number=True),
        Column("pool", lambda t: tenant_pool.text_of(t.pool), is_number=True, extra=1),
        Column("keys", lambda t: " ".join(t.keys) or "none"),
    ]
    render.emit(settings_of(context).output, {"tenants": rows}, columns, rows, title=title)


def _listed(tenant: Tenant, keys: list[ApiKey], pool: PoolUsage | None) -> ListedTenant:
    own = [each for each in keys if each.tenant == tenant.name]
    return ListedTenant(
        **msgspec.structs.asdict(tenant),
        keys=[each.id for each in own if not each.revoked],
        revoked_keys=[each.id for each in own if each.revoked],
        pool=pool,
    )


def _limit(value: int) -> str:
    return str(value) if value else "-"
