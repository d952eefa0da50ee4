"""mcctl tenant key: make an API key, or end one. The file has hashes alone."""

import time
from typing import Annotated

import msgspec
import typer

from daemons.config.tenants import ApiKey, TenantFile, hash_of, id_of, new_api_key
from daemons.core.errors import NotFound
from mcctl import render
from mcctl.commands import check_beginning, confirm
from mcctl.commands.tenant.listing import ListedTenant, show_tenants
from mcctl.commands.tenant.tenants_file import File, Name, change_file, check_known, path_to_change
from mcctl.output_schema import prints
from mcctl.settings import settings_of


class MadeKey(msgspec.Struct, frozen=True, kw_only=True):
    """What `tenant key` prints. The key itself is nowhere else."""

    tenant: str
    id: str
    key: str


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
    path = path_to_change(context, file)
    if revoke is not None:
        confirm(f"End the keys of {name} that begin with {revoke}?", yes=yes)
        show_tenants(
            context, change_file(path, lambda tenants: _without(tenants, name, revoke)), only=name
        )
        return
    secret = new_api_key()
    fresh = ApiKey(tenant=name, id=id_of(secret), hash=hash_of(secret), created=_now())

    def put(tenants: TenantFile) -> TenantFile:
        check_known(tenants, name)
        return msgspec.structs.replace(tenants, key=[*tenants.key, fresh])

    change_file(path, put)
    if settings_of(context).output == "json":
        render.emit_json(MadeKey(tenant=name, id=fresh.id, key=secret))
    else:
        render.emit_line(secret)
        render.note("it is not kept: whoever is to have it needs it now")


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
