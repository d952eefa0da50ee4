"""mcctl tenant add, list and quota: who there is, and how much each may ask."""

from typing import Annotated, Final

import msgspec
import typer

from daemons.config.forms import complaint
from daemons.config.tenants import Tenant, TenantFile, read_tenants
from daemons.core.errors import ConfigError, Conflict
from daemons.protocol.tenant import PoolUsage
from mcctl import render
from mcctl.commands import check_size_if_given
from mcctl.commands.tenant.listing import ListedTenant, show_tenants
from mcctl.commands.tenant.tenants_file import (
    File,
    Name,
    change_file,
    check_known,
    path_to_change,
    tenants_path,
)
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.tenants import pool as tenant_pool

_LIMIT: Final = "0 for no limit."


def _check_name(value: str) -> str:
    why = complaint("name", value)
    if why:
        raise typer.BadParameter(why)
    return value


@prints({"tenants": list[ListedTenant]})
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Letters, digits and . _ -", callback=_check_name)],
    file: File = None,
) -> None:
    """Add a tenant without limits and without a key. Its blocks are its own: it shares no cache hits with others.

    \b
    Example: mcctl tenant add acme
    """

    def put(tenants: TenantFile) -> TenantFile:
        if tenants.find(name) is not None:
            raise Conflict(
                f"there is a tenant {name} already; mcctl tenant quota changes its limits"
            )
        return msgspec.structs.replace(tenants, tenant=[*tenants.tenant, Tenant(name=name)])

    show_tenants(context, change_file(path_to_change(context, file), put), only=name)


@prints({"tenants": list[ListedTenant]})
def list_tenants(context: typer.Context, file: File = None) -> None:
    """Tenants, their limits, and the beginnings of their keys.

    \b
    Example: mcctl tenant list --output json
    """
    path = tenants_path(context, file)
    if not path.exists():
        render.note(f"{path} is not there: nobody is in it; mcctl tenant add NAME writes it")
    tenants = read_tenants(path) if path.exists() else TenantFile()
    pool = tenant_pool.by_tenant(settings_of(context))
    show_tenants(context, tenants, pool=pool, title=f"tenants in {path}")


@prints({"tenants": list[ListedTenant]}, {"pool": list[PoolUsage]})
def quota(
    context: typer.Context,
    name: Name,
    requests_per_minute: Annotated[int | None, typer.Option(min=0, help=_LIMIT)] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=0, help=_LIMIT)] = None,
    tokens_per_day: Annotated[
        int | None, typer.Option(min=0, help="Of each gateway, from midnight UTC; 0 for no limit.")
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option(min=0, help="At once; 0 for no limit.")
    ] = None,
    pool_bytes: Annotated[
        str | None,
        typer.Option(
            help='In the DRAM of all cache nodes, such as "4GiB"; 0 for no limit.',
            callback=check_size_if_given,
        ),
    ] = None,
    file: File = None,
) -> None:
    """Set limits; those that are not named stay. Beyond them: 429 with Retry-After.

    Above --pool-bytes the tenant's own coldest blocks leave the pool first.

    \b
    Example: mcctl tenant quota acme --max-requests 8 --tokens-per-day 2000000
    Example: mcctl tenant quota acme --pool-bytes 4GiB
    """
    given = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "tokens_per_day": tokens_per_day,
        "max_requests": max_requests,
    }
    changes = {limit: value for limit, value in given.items() if value is not None}
    if pool_bytes is not None and not changes:
        tenant_pool.set_quota(settings_of(context), name, pool_bytes)
        tenant_pool.show(settings_of(context), name)
        return

    before: list[int] = []

    def put(tenants: TenantFile) -> TenantFile:
        check_known(tenants, name)
        # Before the file: a master that does not answer leaves both as they were.
        if pool_bytes is not None:
            before.append(tenant_pool.set_quota(settings_of(context), name, pool_bytes))
        return msgspec.structs.replace(
            tenants,
            tenant=[
                msgspec.structs.replace(tenant, **changes) if tenant.name == name else tenant
                for tenant in tenants.tenant
            ],
        )

    try:
        changed = change_file(path_to_change(context, file), put)
    except ConfigError:
        for num_bytes in before:  # the file stays as it was, and so does the master's part
            tenant_pool.set_quota(settings_of(context), name, str(num_bytes))
        raise
    show_tenants(context, changed, only=name)
