"""The directory of `mcctl keys`: where it is, and how its list of those that may connect is changed."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from daemons.config.forms import complaint
from daemons.config.key_files import (
    KeyFile,
    KeyList,
    ListedKey,
    key_list_text,
    read_key_list,
    write_whole,
)
from daemons.core.file_lock import locked
from mcctl import paths, render
from mcctl.settings import settings_of

KEYS_FOLDER: Final = "keys"
LIST_FILE: Final = "authorized.toml"


def _check_name(value: str) -> str:
    why = complaint("name", value)
    if why:
        raise typer.BadParameter(why)
    return value


Directory = Annotated[
    Path | None,
    typer.Option(
        help="Where authorized.toml and keys/ are; /etc/mooncake for root, else ~/.config/mooncake.",
        metavar="DIR",
    ),
]
Node = Annotated[
    str, typer.Argument(help="The node.id; for an admin a name.", callback=_check_name)
]


def key_folder(context: typer.Context, given: Path | None) -> Path:
    """The one that was given, else root's or the user's; of the local cluster there is none, which is said."""
    if given is not None:
        return given
    if settings_of(context).local_cluster is not None:
        render.note(
            "the cluster of `mcctl cluster up` listens on loopback and asks nobody for a key; "
            "these are for other daemons"
        )
    return Path("/etc/mooncake") if os.geteuid() == 0 else paths.config_file().parent


def change_list(file: Path, change: Callable[[KeyList], KeyList]) -> KeyList:
    """Nobody else changes it meanwhile. Raises Exhausted, ConfigError."""
    with locked(file):
        keys = change(read_key_list(file, may_be_missing=True))
        write_whole(file, key_list_text(keys), mode=0o644)
    render.note(f"written to {file}")
    return keys


def as_listed(key: KeyFile) -> ListedKey:
    """Its line in the list, added now and without the secret."""
    return ListedKey(
        node=key.node,
        role=key.role,
        public=key.public,
        added=now_text(),
        namespaces=key.namespaces,
    )


def now_text() -> str:
    """As keys are dated in the list: UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
