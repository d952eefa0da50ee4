"""mcctl tenant: who may use the API of gateways, how much, and what was used. Files, which gateways read again; what a
tenant may hold in the pool is the master's.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from daemons.config.forms import complaint
from daemons.config.key_files import locked, write_whole
from daemons.config.tenants import (
    ApiKey,
    ModelPrice,
    Tenant,
    TenantFile,
    hash_of,
    id_of,
    new_api_key,
    read_tenants,
    tenants_text,
)
from daemons.core.errors import ConfigError, Conflict, NotFound
from daemons.protocol.tenant import PoolUsage
from mcctl import paths, render
from mcctl.commands import check_beginning, check_size_if_given, confirm, new_app
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.tenants import pool as tenant_pool
from mcctl.tenants.usage import TenantUsage, usage_directories, used

app = new_app()

_LIMIT: Final = "0 for no limit."


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


class MadeKey(msgspec.Struct, frozen=True, kw_only=True):
    """What `tenant key` prints. The key itself is nowhere else."""

    tenant: str
    id: str
    key: str


File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="The gateways' tenants.file; of a cluster up --tenants its file, else /etc/mooncake/tenants.toml for "
        "root and ~/.config/mooncake/tenants.toml for others.",
        metavar="FILE",
    ),
]
Name = Annotated[str, typer.Argument(help="As in `tenant list`.")]


def _check_name(value: str) -> str:
    why = complaint("name", value)
    if why:
        raise typer.BadParameter(why)
    return value


@app.callback()
def _noun() -> None:
    """Tenants of gateways: API keys, limits, usage."""


@app.command()
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

    _show(context, _change(_where(context, file), put), only=name)


@app.command("list")
@prints({"tenants": list[ListedTenant]})
def list_tenants(context: typer.Context, file: File = None) -> None:
    """Tenants, their limits, and the beginnings of their keys.

    \b
    Example: mcctl tenant list --output json
    """
    path = _where(context, file)
    tenants = read_tenants(path) if path.exists() else TenantFile()
    pool = tenant_pool.by_tenant(settings_of(context))
    _show(context, tenants, pool=pool, title=f"tenants in {path}")


@app.command()
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

    def put(tenants: TenantFile) -> TenantFile:
        _known(tenants, name)
        # Before the file: a master that does not answer leaves both as they were.
        if pool_bytes is not None:
            tenant_pool.set_quota(settings_of(context), name, pool_bytes)
        return msgspec.structs.replace(
            tenants,
            tenant=[
                msgspec.structs.replace(tenant, **changes) if tenant.name == name else tenant
                for tenant in tenants.tenant
            ],
        )

    _show(context, _change(_where(context, file), put), only=name)


@app.command()
@prints(MadeKey, {"tenants": list[ListedTenant]})
def key(
    context: typer.Context,
    name: Name,
    revoke: Annotated[
        str | None,
        typer.Option(
            help="End the key that begins like this instead.",
            metavar="ID",
            callback=check_beginning,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    file: File = None,
) -> None:
    """Make an API key, or end one. It is shown this once; the file has its hash alone.

    \b
    Example: mcctl tenant key acme
    Example: mcctl tenant key acme --revoke mc-Ab3dEf9h --yes
    """
    path = _where(context, file)
    if revoke is not None:
        confirm(f"End the keys of {name} that begin with {revoke}?", yes=yes)
        _show(context, _change(path, lambda tenants: _without(tenants, name, revoke)), only=name)
        return
    secret = new_api_key()
    fresh = ApiKey(tenant=name, id=id_of(secret), hash=hash_of(secret), created=_now())

    def put(tenants: TenantFile) -> TenantFile:
        _known(tenants, name)
        return msgspec.structs.replace(tenants, key=[*tenants.key, fresh])

    _change(path, put)
    if settings_of(context).output == "json":
        render.emit_json(MadeKey(tenant=name, id=fresh.id, key=secret))
    else:
        render.emit_line(secret)
        render.note("it is not kept: whoever is to have it needs it now")


@app.command()
@prints({"days": int, "usage": list[TenantUsage], "pool": list[PoolUsage]})
def usage(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="One tenant; else all.")] = None,
    days: Annotated[
        int, typer.Option(min=1, max=3660, help="Today and so many less one before.")
    ] = 1,
    directories: Annotated[
        list[Path] | None,
        typer.Option(
            "--usage-dir",
            help="A gateway's usage directory; may be repeated. Else those of this host's gateways.",
            metavar="DIR",
        ),
    ] = None,
    file: File = None,
) -> None:
    """What was used and what it costs, by tenant and model. Days are UTC.

    \b
    Example: mcctl tenant usage acme --days 30
    """
    for directory in directories or ():
        if not directory.is_dir():
            raise ConfigError(f"--usage-dir {directory}: no such directory; see tenants.usage_dir")
    found = used(directories or usage_directories(_where(context, file)), days, name)
    settings = settings_of(context)
    pool = tenant_pool.by_tenant(settings)
    held = [each for each in pool.values() if name in (None, each.tenant)]
    columns = [
        Column("tenant", lambda r: r.tenant),
        Column("model", lambda r: r.model, extra=1),
        Column("requests", lambda r: str(r.requests), is_number=True),
        Column("prompt", lambda r: str(r.prompt_tokens), is_number=True),
        Column("cached", lambda r: str(r.cached_tokens), is_number=True),
        Column("completion", lambda r: str(r.completion_tokens), is_number=True),
        Column("cost", lambda r: f"{r.cost:.6f}", is_number=True),
        Column(
            "in the pool",
            lambda r: tenant_pool.text_of(pool.get(r.tenant)),
            is_number=True,
            extra=2,
        ),
    ]
    result = {"days": days, "usage": found, "pool": held}
    render.emit(settings.output, result, columns, found)


@app.command()
@prints({"prices": list[ModelPrice]})
def price(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Its name, or * for those that have none.")],
    prompt: Annotated[
        float | None, typer.Option(min=0, help="Of prompt tokens that are computed.")
    ] = None,
    cached: Annotated[float | None, typer.Option(min=0, help="Of those that are reused.")] = None,
    completion: Annotated[float | None, typer.Option(min=0, help="Of generated tokens.")] = None,
    file: File = None,
) -> None:
    """Set what a million tokens of a model cost. Holds for answers from now on.

    \b
    Example: mcctl tenant price "*" --prompt 0.2 --cached 0.02
    """
    if prompt is None and cached is None and completion is None:
        raise typer.BadParameter(
            "say --prompt, --cached or --completion; what is not named is free"
        )
    fresh = ModelPrice(
        model=model, prompt=prompt or 0.0, cached=cached or 0.0, completion=completion or 0.0
    )

    def put(tenants: TenantFile) -> TenantFile:
        others = [each for each in tenants.price if each.model != model]
        return msgspec.structs.replace(tenants, price=[*others, fresh])

    prices = _change(_where(context, file), put).price
    columns = [
        Column("model", lambda p: p.model),
        Column("prompt", lambda p: f"{p.prompt:g}", is_number=True),
        Column("cached", lambda p: f"{p.cached:g}", is_number=True),
        Column("completion", lambda p: f"{p.completion:g}", is_number=True),
    ]
    render.emit(settings_of(context).output, {"prices": prices}, columns, prices)


def _where(context: typer.Context, given: Path | None) -> Path:
    """A local cluster without tenants is left alone: what is written then is for others, which is said."""
    if given is not None:
        return given
    local = settings_of(context).local_cluster
    if local is not None and local.tenants is not None:
        return Path(local.tenants)
    if local is not None:
        render.note(
            "the gateway of `mcctl cluster up` has no tenants, anybody may ask it; "
            "started with `--tenants FILE` it has those of FILE"
        )
    folder = Path("/etc/mooncake") if os.geteuid() == 0 else paths.config_file().parent
    return folder / "tenants.toml"


def _change(path: Path, change: Callable[[TenantFile], TenantFile]) -> TenantFile:
    """Its hashes open nothing, so whoever may enter the directory may read it: the gateway's user does."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {path.parent}: {error.strerror}") from None
    with locked(path):
        tenants = change(read_tenants(path) if path.exists() else TenantFile())
        write_whole(path, tenants_text(tenants), mode=0o644)
    render.note(f"written to {path}")
    return tenants


def _known(tenants: TenantFile, name: str) -> None:
    if tenants.find(name) is None:
        raise NotFound(f"no tenant {name}; mcctl tenant add {name} makes it")


def _without(tenants: TenantFile, name: str, beginning: str) -> TenantFile:
    def is_meant(each: ApiKey) -> bool:
        return each.tenant == name and each.id.startswith(beginning) and not each.revoked

    if not any(map(is_meant, tenants.key)):
        raise NotFound(f"{name} has no key that begins with {beginning}; see mcctl tenant list")
    ended = [
        msgspec.structs.replace(each, revoked=_now()) if is_meant(each) else each
        for each in tenants.key
    ]
    return msgspec.structs.replace(tenants, key=ended)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _show(
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
        Column("in the pool", lambda t: tenant_pool.text_of(t.pool), is_number=True, extra=1),
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
