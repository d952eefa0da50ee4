"""mcctl keys list, authorize, revoke: who may connect."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from daemons.config.key_files import (
    KeyList,
    ListedKey,
    read_key_file,
    read_key_list,
)
from daemons.core.errors import NotFound
from mcctl import render
from mcctl.commands import check_beginning, confirm
from mcctl.commands.keys.key_folder import (
    LIST_FILE,
    Directory,
    Node,
    as_listed,
    change_list,
    key_folder,
    now_text,
)
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What list, authorize and revoke print as JSON; fields are only ever added."""

    file: str
    keys: list[ListedKey]


@prints(Listing)
def list_keys(context: typer.Context, directory: Directory = None) -> None:
    """Who may connect, and whose keys were revoked.

    \b
    Example: mcctl keys list --output json
    """
    file = key_folder(context, directory) / LIST_FILE
    _show_list(context, file, read_key_list(file, may_be_missing=True))


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
    folder = key_folder(context, directory)
    given = [read_key_file(path) for path in files]

    def add(keys: KeyList) -> KeyList:
        known = {key.public for key in keys.key if not key.revoked}
        fresh = {key.public: key for key in given if key.public not in known}
        kept = [key for key in keys.key if key.public not in fresh]
        return KeyList(key=kept + [as_listed(key) for key in fresh.values()])

    _show_list(context, folder / LIST_FILE, change_list(folder / LIST_FILE, add))


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
    file = key_folder(context, directory) / LIST_FILE

    def chosen(entry: ListedKey) -> bool:
        return entry.node == node and not entry.revoked and entry.public.startswith(key or "")

    found = [entry for entry in read_key_list(file).key if chosen(entry)]
    if not found:
        raise NotFound(f"{file} lets no such key of {node} in; see mcctl keys list")
    confirm(f"Cut off {node} ({len(found)} of its keys)?", yes=yes)

    def cut(keys: KeyList) -> KeyList:
        return KeyList(
            key=[
                msgspec.structs.replace(entry, revoked=now_text()) if chosen(entry) else entry
                for entry in keys.key
            ]
        )

    _show_list(context, file, change_list(file, cut))


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
