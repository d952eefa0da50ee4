"""mcctl tenant usage and price: what was used, and what it costs."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from daemons.config.tenants import ModelPrice, TenantFile, read_tenants
from daemons.core.errors import ConfigError
from daemons.protocol.tenant import PoolUsage
from mcctl import render
from mcctl.commands.tenant.tenants_file import (
    File,
    change_file,
    check_known,
    path_to_change,
    tenants_path,
)
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.tenants import pool as tenant_pool
from mcctl.tenants.usage import TenantUsage, usage_directories, used


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
    path = tenants_path(context, file)
    found = used(directories or usage_directories(path), days, name)
    settings = settings_of(context)
    pool = tenant_pool.by_tenant(settings)
    held = [each for each in pool.values() if name in (None, each.tenant)]
    if name is not None and not found and not held:
        check_known(read_tenants(path) if path.exists() else TenantFile(), name)
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

    prices = change_file(path_to_change(context, file), put).price
    columns = [
        Column("model", lambda p: p.model),
        Column("prompt", lambda p: f"{p.prompt:g}", is_number=True),
        Column("cached", lambda p: f"{p.cached:g}", is_number=True),
        Column("completion", lambda p: f"{p.completion:g}", is_number=True),
    ]
    render.emit(settings_of(context).output, {"prices": prices}, columns, prices)
