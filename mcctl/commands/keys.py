"""mcctl keys: who may connect to a cluster's daemons. Works on files; the master reads its list again by itself."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from daemons.client.identity import new_key
from daemons.config.forms import complaint
from daemons.config.key_files import (
    KeyFile,
    KeyList,
    ListedKey,
    key_list_text,
    key_text,
    read_key_file,
    read_key_list,
    write_whole,
)
from daemons.core.errors import ConfigError, Conflict, McError, NotFound, Rejected
from daemons.core.file_lock import locked
from daemons.core.ids import NodeId
from daemons.protocol.key import KEY_ROLES, KeyRole
from mcctl import paths, render
from mcctl.commands import check_beginning, confirm, new_app
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of

app = new_app()

_KEYS: Final = "keys"
_LIST: Final = "authorized.toml"


class WrittenKey(msgspec.Struct, frozen=True, kw_only=True):
    """What generate and rotate print as JSON; fields are only ever added."""

    node: str
    role: str
    public: str
    key_file: str
    public_file: str


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What list, authorize and revoke print as JSON; fields are only ever added."""

    file: str
    keys: list[ListedKey]


def _check_role(value: str) -> str:
    if value not in KEY_ROLES:
        raise typer.BadParameter(f"{value}: write one of {', '.join(KEY_ROLES)}")
    return value


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


@app.callback()
def _noun() -> None:
    """Keys of daemons and operators: make, authorize, revoke."""


@app.command()
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
    folder = _folder(context, directory)
    secret = folder / _KEYS / f"{node}.key"
    if secret.exists():
        raise Conflict(f"{secret} exists; mcctl keys rotate {node} makes another key for it")
    try:
        made = new_key(NodeId(node), _as_role(role), namespace or ())
    except ValueError as error:
        raise typer.BadParameter(f"--namespace: {error}") from None
    written = _write(folder, made)
    if let_in:
        try:
            _change(folder / _LIST, lambda keys: KeyList(key=[*keys.key, _listed(made)]))
        except McError:
            for path in (written.key_file, written.public_file):
                Path(path).unlink(missing_ok=True)
            raise
    _show_written(context, written)


@app.command("list")
@prints(Listing)
def list_keys(context: typer.Context, directory: Directory = None) -> None:
    """Who may connect, and whose keys were revoked.

    \b
    Example: mcctl keys list --output json
    """
    file = _folder(context, directory) / _LIST
    _show_list(context, file, read_key_list(file, may_be_missing=True))


@app.command()
@prints(Listing)
def authorize(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="NODE.pub files; NODE.key is fine too.")],
    directory: Directory = None,
) -> None:
    """Let the owners of these keys in. The master takes it over within a moment and tells the nodes.

    \b
    Example: mcctl keys authorize /etc/mooncake/keys/*.pub
    """
    folder = _folder(context, directory)
    given = [read_key_file(path) for path in files]

    def add(keys: KeyList) -> KeyList:
        known = {key.public for key in keys.key if not key.revoked}
        fresh = {key.public: key for key in given if key.public not in known}
        kept = [key for key in keys.key if key.public not in fresh]
        return KeyList(key=kept + [_listed(key) for key in fresh.values()])

    _show_list(context, folder / _LIST, _change(folder / _LIST, add))


@app.command()
@prints(Listing)
def revoke(
    context: typer.Context,
    node: Node,
    key: Annotated[
        str | None,
        typer.Option(
            help="Only the key that begins like this.", metavar="HEX", callback=check_beginning
        ),
    ] = None,
    directory: Directory = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Cut a node off, its open connections included. Without --key: all its keys.

    \b
    Example: mcctl keys revoke cache-1 --yes
    """
    file = _folder(context, directory) / _LIST

    def chosen(entry: ListedKey) -> bool:
        return entry.node == node and not entry.revoked and entry.public.startswith(key or "")

    found = [entry for entry in read_key_list(file).key if chosen(entry)]
    if not found:
        raise NotFound(f"{file} lets no such key of {node} in; see mcctl keys list")
    confirm(f"Cut off {node} ({len(found)} of its keys)?", yes=yes)

    def cut(keys: KeyList) -> KeyList:
        return KeyList(
            key=[
                msgspec.structs.replace(entry, revoked=_now()) if chosen(entry) else entry
                for entry in keys.key
            ]
        )

    _show_list(context, file, _change(file, cut))


@app.command()
@prints(WrittenKey)
def rotate(context: typer.Context, node: Node, directory: Directory = None) -> None:
    """Make another key for a node, let in beside the old one. That one goes on until it is revoked.

    Install the new NODE.key, restart the daemon, then: mcctl keys revoke NODE --key OLD.

    \b
    Example: mcctl keys rotate cache-1
    """
    folder = _folder(context, directory)
    old = read_key_file(folder / _KEYS / f"{node}.key")
    made = new_key(NodeId(old.node), old.role, old.namespaces)
    # On the list first: whatever fails after that, the file that is there opens as before.
    _change(folder / _LIST, lambda keys: KeyList(key=[*keys.key, _listed(made)]))
    try:
        fresh = _write(folder, made)
    except McError:
        with contextlib.suppress(McError):
            _change(folder / _LIST, lambda keys: _without(keys, made.public))
        raise
    _show_written(context, fresh)
    render.note(
        f"install {fresh.key_file}, restart {node}, then: mcctl keys revoke {node} --key {old.public[:16]}"
    )


def _folder(context: typer.Context, given: Path | None) -> Path:
    if given is not None:
        return given
    if settings_of(context).local_cluster is not None:
        render.note(
            "the cluster of `mcctl cluster up` listens on loopback and asks nobody for a key; "
            "these are for other daemons"
        )
    return Path("/etc/mooncake") if os.geteuid() == 0 else paths.config_file().parent


def _write(folder: Path, key: KeyFile) -> WrittenKey:
    """Both or none."""
    keys = folder / _KEYS
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


def _change(file: Path, change: Callable[[KeyList], KeyList]) -> KeyList:
    with locked(file):
        keys = change(read_key_list(file, may_be_missing=True))
        write_whole(file, key_list_text(keys), mode=0o644)
    render.note(f"written to {file}")
    return keys


def _without(keys: KeyList, public: str) -> KeyList:
    return KeyList(key=[key for key in keys.key if key.public != public])


def _listed(key: KeyFile) -> ListedKey:
    return ListedKey(
        node=key.node,
        role=key.role,
        public=key.public,
        added=_now(),
        namespaces=key.namespaces,
    )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _as_role(text: str) -> KeyRole:
    for role in KEY_ROLES:
        if role == text:
            return role
    raise Rejected(f"no such role: {text}")


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


def _show_list(context: typer.Context, file: Path, keys: KeyList) -> None:
    columns = [
        Column("node", lambda k: k.node),
        Column("role", lambda k: k.role),
        Column("namespaces", lambda k: ", ".join(k.namespaces), extra=2),
        Column("state", lambda k: f"revoked {k.revoked}" if k.revoked else "allowed"),
        Column("added", lambda k: k.added, extra=1),
        Column("public key", lambda k: k.public),
    ]
    listing = Listing(file=str(file), keys=keys.key)
    title = f"keys in {file}"
    render.emit(settings_of(context).output, listing, columns, keys.key, title=title)
