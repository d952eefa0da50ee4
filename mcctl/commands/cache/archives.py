"""mcctl cache export and import: all objects of a namespace in files."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from daemons.core.errors import Unavailable
from daemons.core.units import format_count, format_size
from mcctl import render
from mcctl.cache.archive import export_objects, import_objects
from mcctl.cache.object_store import open_store
from mcctl.cache.own_address import own_address
from mcctl.commands.cache.objects import BindHost, Namespace
from mcctl.output_schema import prints
from mcctl.settings import Settings, settings_of


class ArchiveResult(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    num_objects: int
    num_bytes: int


@prints(ArchiveResult)
def export(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="A new directory, or a file ending in .tar.")],
    namespace: Namespace = "",
) -> None:
    """Write all objects of a namespace to files, with checksums.

    Into a new directory or a tar file.

    \b
    Example: mcctl cache export training.tar --namespace training
    """
    settings = settings_of(context)
    with open_store(settings, namespace) as store, render.progress("exporting") as progress:
        index = export_objects(store, path, progress)
    if not index.objects:
        render.note(f"namespace {namespace!r} is empty; --namespace names another")
    num_bytes = sum(entry.num_bytes for entry in index.objects)
    _emit_archive(settings, path, len(index.objects), num_bytes)


@prints(ArchiveResult)
def import_(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="What cache export wrote.")],
    namespace: Namespace = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Also objects that are there with other bytes.")
    ] = False,
    bind_host: BindHost = "",
) -> None:
    """Put the objects of an export, into any namespace. All files are checked before the first is put.

    \b
    Example: mcctl cache import training.tar --namespace training-copy
    """
    settings = settings_of(context)
    host = bind_host or own_address(settings.master)
    with (
        open_store(settings, namespace, host) as store,
        render.progress("importing") as progress,
    ):
        count = import_objects(store, path, progress, replaces=replace)
    _emit_archive(settings, path, count.num_put, count.num_bytes)
    for name, error in count.failures[:10]:
        render.complain(f"{bytes.fromhex(name)!r}: {error.message}")
    if count.failures:
        raise Unavailable(
            f"{format_count(len(count.failures), 'object')} not imported; import again, "
            "with --replace for those in conflict"
        )


def _emit_archive(settings: Settings, path: Path, num_objects: int, num_bytes: int) -> None:
    if settings.output == "json":
        render.emit_json(
            ArchiveResult(path=str(path), num_objects=num_objects, num_bytes=num_bytes)
        )
    else:
        render.emit_line(f"{path}: {format_count(num_objects, 'object')}, {format_size(num_bytes)}")
