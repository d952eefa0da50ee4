"""The directory with key files and the list of those that may connect: where it is, and how it is changed."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from daemons.config.forms import complaint
from daemons.config.key_files import (
    KeyFile,
    KeyList,
    ListedKey,
    key_list_text,
    key_text,
    read_key_list,
    write_whole,
)
from daemons.core.errors import ConfigError
from daemons.core.file_lock import locked
from mcctl import paths, render
from mcctl.settings import settings_of

KEYS: Final = "keys"


LIST: Final = "authorized.toml"


class WrittenKey(msgspec.Struct, frozen=True, kw_only=True):
    """What generate and rotate print as JSON; fields are only ever added."""

    node: str
    role: str
    public: str
    key_file: str
    public_file: str


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


def write_pair(folder: Path, key: KeyFile) -> WrittenKey:
    """Both or none."""
    keys = folder / KEYS
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        keys.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {keys}: {error.strerror}; see --directory") from None
    secret, public = keys / f"{key.node}.key", keys / f"{key.node}.pub"
    texts = {public: key_text(msgspec.structs.replace(key, secret="")), secret: key_text(key)}
    drafts = {path: path.with_name(f".{path.name}.new") for path in texts}
    try:
        for path, text in texts.items():
            write_whole(drafts[path], text, mode=0o600 if path is secret else 0o644)
        for path, draft in drafts.items():
            draft.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename2 or secret}: {error.strerror}") from None
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
    return WrittenKey(
        node=key.node,
        role=key.role,
        public=key.public,
        key_file=str(secret),
        public_file=str(public),
    )


def change_list(file: Path, change: Callable[[KeyList], KeyList]) -> KeyList:
    """Nobody else changes it meanwhile. Raises Exhausted, ConfigError."""
    with locked(file):
        keys = change(read_key_list(file, may_be_missing=True))
        write_whole(file, key_list_text(keys), mode=0o644)
    render.note(f"written to {file}")
    return keys


def without(keys: KeyList, public: str) -> KeyList:
    """The list without this one key."""
    return KeyList(key=[key for key in keys.key if key.public != public])


def listed(key: KeyFile) -> ListedKey:
    """Its line in the list, added now and without the secret."""
    return ListedKey(
        node=key.node,
        role=key.role,
        public=key.public,
        added=now(),
        namespaces=key.namespaces,
    )


def now() -> str:
    """As keys are dated in the list: UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
