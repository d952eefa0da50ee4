"""The file with the tenants of gateways: where it is, and how it is changed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from daemons.config.key_files import write_whole
from daemons.config.tenants import TenantFile, read_tenants, tenants_text
from daemons.core.errors import ConfigError, Conflict, NotFound
from daemons.core.file_lock import locked
from mcctl import paths, render
from mcctl.settings import settings_of

_OPEN: Final = (
    "the gateway of `mcctl cluster up` has no tenants, anybody may ask it; "
    "started with `--tenants FILE` it has those of FILE"
)

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


def tenants_path(context: typer.Context, given: Path | None) -> Path:
    """To read. A local cluster without tenants is left alone: what is found then is of others, which is said."""
    if given is not None:
        return given
    local = settings_of(context).local_cluster
    if local is not None and local.tenants is not None:
        return Path(local.tenants)
    if local is not None:
        render.note(_OPEN)
    return _of_host()


def path_to_change(context: typer.Context, given: Path | None) -> Path:
    """Raises Conflict beside a local cluster without tenants: who asks for them there did not mean this host's file."""
    local = settings_of(context).local_cluster
    if given is None and local is not None and local.tenants is None:
        raise Conflict(f"{_OPEN}; other gateways' file is named: --file {_of_host()}")
    return tenants_path(context, given)


def _of_host() -> Path:
    folder = Path("/etc/mooncake") if os.geteuid() == 0 else paths.config_file().parent
    return folder / "tenants.toml"


def change_file(path: Path, change: Callable[[TenantFile], TenantFile]) -> TenantFile:
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


def check_known(tenants: TenantFile, name: str) -> None:
    if tenants.find(name) is None:
        raise NotFound(f"no tenant {name}; mcctl tenant add {name} makes it")
