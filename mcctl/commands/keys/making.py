"""mcctl keys generate, rotate: new key pairs."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from daemons.client.identity import new_key
from daemons.config.key_files import (
    KeyFile,
    KeyList,
    key_text,
    read_key_file,
    write_whole,
)
from daemons.core.errors import ConfigError, Conflict, McError
from daemons.core.ids import NodeId
from daemons.protocol.key import KEY_ROLES, KeyRole
from mcctl import render
from mcctl.commands.keys.key_folder import (
    KEYS_FOLDER,
    LIST_FILE,
    Directory,
    Node,
    as_listed,
    change_list,
    key_folder,
)
from mcctl.output_schema import prints
from mcctl.settings import settings_of

_ROLE_BY_NAME: Final[Mapping[str, KeyRole]] = {role: role for role in KEY_ROLES}


class WrittenKey(msgspec.Struct, frozen=True, kw_only=True):
    """What generate and rotate print as JSON; fields are only ever added."""

    node: str
    role: str
    public: str
    key_file: str
    public_file: str


def _check_role(value: str) -> str:
    if value not in KEY_ROLES:
        raise typer.BadParameter(f"{value}: write one of {', '.join(KEY_ROLES)}")
    return value


def _check_namespaces(node: str, role: str, namespaces: Sequence[str]) -> None:
    if role == "client" and not namespaces:
        raise typer.BadParameter(
            "a client needs --namespace, the objects that it may use: "
            f"`mcctl keys generate {node} --role client --namespace NAMESPACE`"
        )
    if role != "client" and namespaces:
        raise typer.BadParameter(f"--namespace is for --role client alone, not for {role}")


@prints(WrittenKey)
def generate(
    context: typer.Context,
    node: Node,
    role: Annotated[
        str,
        typer.Option(help=f"One of {', '.join(KEY_ROLES)}.", metavar="ROLE", callback=_check_role),
    ],
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a client: whose objects it may put, get, list and delete. May be repeated.",
            metavar="NAMESPACE",
        ),
    ] = None,
    let_in: Annotated[
        bool, typer.Option("--authorize", help="Put it on the list here, too.")
    ] = False,
    directory: Directory = None,
) -> None:
    """Make a key pair. NODE.key is the secret and goes to that host alone, NODE.pub goes to the list.

    The role admin is an operator's. A client is an application with a Store (mc-store): it uses objects in its
    namespaces, and sees and changes nothing else.

    \b
    Example: mcctl keys generate cache-1 --role cachenode
    Example: mcctl keys generate trainer --role client --namespace training
    """
    _check_namespaces(node, role, namespace or ())
    folder = key_folder(context, directory)
    secret = folder / KEYS_FOLDER / f"{node}.key"
    if secret.exists():
        raise Conflict(f"{secret} exists; mcctl keys rotate {node} makes another key for it")
    try:
        made = new_key(NodeId(node), _ROLE_BY_NAME[role], namespace or ())
    except ValueError as error:
        raise typer.BadParameter(f"--namespace: {error}") from None
    written = _write_pair(folder, made)
    if let_in:
        try:
            change_list(folder / LIST_FILE, lambda keys: KeyList(key=[*keys.key, as_listed(made)]))
        except McError:
            for path in (written.key_file, written.public_file):
                Path(path).unlink(missing_ok=True)
            raise
    _show_written(context, written)


@prints(WrittenKey)
def rotate(context: typer.Context, node: Node, directory: Directory = None) -> None:
    """Make another key for a node, let in beside the old one. That one goes on until it is revoked.

    Install the new NODE.key, restart the daemon, then: mcctl keys revoke NODE --key OLD.

    \b
    Example: mcctl keys rotate cache-1
    """
    folder = key_folder(context, directory)
    old = read_key_file(folder / KEYS_FOLDER / f"{node}.key")
    made = new_key(NodeId(old.node), old.role, old.namespaces)
    # On the list first: whatever fails after that, the file that is there opens as before.
    change_list(folder / LIST_FILE, lambda keys: KeyList(key=[*keys.key, as_listed(made)]))
    try:
        fresh = _write_pair(folder, made)
    except McError:
        with contextlib.suppress(McError):
            change_list(folder / LIST_FILE, lambda keys: _without(keys, made.public))
        raise
    _show_written(context, fresh)
    render.note(
        f"install {fresh.key_file}, restart {node}, then: mcctl keys revoke {node} --key {old.public[:16]}"
    )


def _write_pair(folder: Path, key: KeyFile) -> WrittenKey:
    """Both or none."""
    keys = folder / KEYS_FOLDER
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


def _without(keys: KeyList, public: str) -> KeyList:
    """The list without this one key."""
    return KeyList(key=[key for key in keys.key if key.public != public])


def _show_written(context: typer.Context, written: WrittenKey) -> None:
    output = settings_of(context).output
    if output == "json":
        render.emit_json(written)
    elif output == "plain":
        render.emit_line(written.public)
    else:
        render.show_facts(
            [
                ("key of", f"{written.role} {written.node}"),
                ("public", written.public),
                ("secret in", written.key_file),
                ("public in", written.public_file),
            ]
        )
