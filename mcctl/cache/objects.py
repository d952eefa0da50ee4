"""mcctl cache get, put, rm, export, import, and what list and stat say of objects."""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer

from daemons.client.objects.store import ObjectStat, Store, ValueType
from daemons.core.errors import ConfigError, Exhausted, NotFound, Rejected, Unavailable
from daemons.core.units import format_count, format_duration, format_size
from daemons.protocol.objects import ListedName, NamespaceStat
from mcctl import render
from mcctl.cache.archive import export_objects, import_objects
from mcctl.cache.own_address import own_address
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import Settings, settings_of

Namespace = Annotated[str, typer.Option(help="The namespace of the names.")]
BindHost = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Where cache nodes read from this command; default: its address towards the master.",
    ),
]
NameArgument = Annotated[str, typer.Argument(help="The object's name.")]


class PutResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    num_bytes: int
    version: int


class GetResult(msgspec.Struct, frozen=True, kw_only=True):
    """Only with --out: without it the value itself is what is written."""

    name: str
    num_bytes: int
    path: str


class ObjectResult(msgspec.Struct, frozen=True, kw_only=True):
    """One object; fields are only ever added. A name that is no text has its bytes as escapes."""

    name: str
    num_bytes: int
    version: int
    nodes: list[str]
    num_chunks: int | None = None
    dtype: str = ""
    shape: list[int] = msgspec.field(default_factory=list)
    age_s: float | None = None


class DeleteResult(msgspec.Struct, frozen=True, kw_only=True):
    deleted: list[str]
    missing: list[str]


class ArchiveResult(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    num_objects: int
    num_bytes: int


@prints(PutResult)
def put(  # noqa: PLR0913,PLR0917  # options of a verb
    context: typer.Context,
    name: NameArgument,
    file: Annotated[str, typer.Argument(help="A file with the value; - for stdin.")] = "-",
    namespace: Namespace = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="In place of what is there, as a new version.")
    ] = False,
    replicas: Annotated[
        int, typer.Option(min=0, max=8, help="On so many hosts; 0: what the pool wants.")
    ] = 0,
    min_sealed: Annotated[
        int, typer.Option(min=1, max=8, help="Return when it is on so many of them.")
    ] = 1,
    bind_host: BindHost = "",
) -> None:
    """Put a value under a name. The same bytes again succeed; other bytes under a taken name need --replace.

    \b
    Example: mcctl cache put weights-7 weights.bin --namespace training
    """
    if min_sealed > max(1, replicas):
        raise typer.BadParameter(f"--min-sealed {min_sealed} needs as many --replicas")
    settings = settings_of(context)
    value = _read(file)
    with open_store(settings, namespace, bind_host or own_address(settings.master)) as store:
        version = (store.replace if replace else store.put)(
            _name(name), value, like=ValueType(), replicas=replicas, min_sealed=min_sealed
        )
    result = PutResult(name=shown(_name(name)), num_bytes=_size(value), version=version)
    if settings.output == "json":
        render.emit_json(result)
    else:
        render.emit_line(
            f"{result.name}: {format_size(result.num_bytes)}, version {_version(version)}"
        )


@prints(GetResult)
def get(
    context: typer.Context,
    name: NameArgument,
    out: Annotated[Path | None, typer.Option(help="Write it to this file, not to stdout.")] = None,
    namespace: Namespace = "",
    offset: Annotated[int, typer.Option(min=0, help="Begin at this byte.")] = 0,
    length: Annotated[int | None, typer.Option(min=0, help="At most so many bytes.")] = None,
) -> None:
    """The value under a name, verified. Exit status 3 when there is none.

    \b
    Example: mcctl cache get weights-7 --namespace training --out weights.bin
    """
    if out is None and sys.stdout.isatty():
        raise Rejected("a value may be any bytes; say --out FILE, or redirect stdout")
    settings = settings_of(context)
    with open_store(settings, namespace) as store:
        if offset or length is not None:
            end = 1 << 40 if length is None else length
            value = store.get_range(_name(name), offset, end)
        else:
            value = store.get(_name(name))
    if value is None:
        raise NotFound(f"no object {shown(_name(name))!r} in namespace {namespace!r}")
    if out is None:
        sys.stdout.buffer.write(value)
        return
    write_value(out, value)
    if settings.output == "json":
        render.emit_json(GetResult(name=name, num_bytes=len(value), path=str(out)))


@prints(DeleteResult)
def remove(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="Names of objects.")],
    namespace: Namespace = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete objects. They do not come back, not from a node that is away either.

    \b
    Example: mcctl cache rm weights-6 --namespace training --yes
    """
    settings = settings_of(context)
    if not yes:
        if not sys.stdin.isatty():
            raise Rejected("rm deletes objects; say --yes where nobody can be asked")
        typer.confirm(f"Delete {format_count(len(names), 'object')}?", abort=True, err=True)
    with open_store(settings, namespace) as store:
        found = store.delete_many([_name(name) for name in names])
    said = [(shown(_name(name)), was_there) for name, was_there in zip(names, found, strict=True)]
    result = DeleteResult(
        deleted=[name for name, was_there in said if was_there],
        missing=[name for name, was_there in said if not was_there],
    )
    if settings.output == "json":
        render.emit_json(result)
    else:
        render.emit_line(f"{format_count(len(result.deleted), 'object')} deleted")
    if result.missing:
        raise NotFound(f"not there: {', '.join(result.missing)}")


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


def list_objects(settings: Settings, namespace: str, prefix: str, limit: int) -> None:
    """`cache list --namespace`."""
    listed: list[ListedName] = []
    with open_store(settings, namespace) as store:
        for each in store.list(_prefix(prefix)):
            listed.append(each)
            if len(listed) == limit:
                break
    listed.sort(key=lambda each: each.name)
    columns = [
        Column("name", lambda o: shown(o.name)),
        Column("size", lambda o: format_size(o.value_bytes), is_number=True),
        Column("version", lambda o: _version(o.version), extra=2),
        Column("age", lambda o: format_duration(o.age_s), is_number=True),
        Column("idle", lambda o: format_duration(o.idle_s), is_number=True, extra=1),
        Column("nodes", lambda o: ", ".join(o.nodes)),
    ]
    objects = [
        ObjectResult(
            name=shown(o.name),
            num_bytes=o.value_bytes,
            version=o.version,
            nodes=list(o.nodes),
            age_s=o.age_s,
        )
        for o in listed
    ]
    render.emit(
        settings.output,
        {"objects": objects},
        columns,
        listed if settings.output != "json" else objects,
    )
    if len(listed) == limit and settings.output == "table":
        render.note(f"only {limit} of them; --limit shows more")


def stat_object(settings: Settings, namespace: str, name: str) -> None:
    """`cache stat NAME`."""
    with open_store(settings, namespace) as store:
        found = store.stat(_name(name))
    if found is None:
        raise NotFound(f"no object {shown(_name(name))!r} in namespace {namespace!r}")
    if settings.output == "json":
        render.emit_json(
            ObjectResult(
                name=shown(found.name),
                num_bytes=found.value_bytes,
                version=found.version,
                nodes=list(found.nodes),
                num_chunks=found.num_chunks,
                dtype=found.dtype,
                shape=list(found.shape),
            )
        )
        return
    facts = _facts(found)
    if settings.output == "plain":
        for title, value in facts:
            render.emit_line(f"{title}\t{value}")
    else:
        render.show_facts(facts)


def namespace_facts(namespaces: Sequence[NamespaceStat]) -> list[tuple[str, str]]:
    """For `cache stat`."""
    return [
        (
            f"objects in {shown(each.namespace) or 'the unnamed namespace'}",
            f"{each.num_names}, {format_size(each.value_bytes)}",
        )
        for each in namespaces
    ]


def open_store(settings: Settings, namespace: str, bind_host: str = "127.0.0.1") -> Store:
    """Who puts nothing is read by nobody, and needs no other address."""
    return Store(
        settings.master,
        namespace=os.fsencode(namespace),
        timeout_s=settings.wait_s,
        bind_host=bind_host,
        key_file=settings.key_file,
    )


def write_value(out: Path, value: bytes) -> None:
    """A new file is written whole or not at all. Raises Exhausted where there is no room for it, ConfigError."""
    was_there = out.exists()
    try:
        out.write_bytes(value)
    except OSError as error:
        if not was_there:
            out.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Exhausted(
                f"{out}: {error.strerror}; {format_size(len(value))} are to be written"
            ) from None
        raise ConfigError(f"{out}: {error.strerror}") from None


def _emit_archive(settings: Settings, path: Path, num_objects: int, num_bytes: int) -> None:
    if settings.output == "json":
        render.emit_json(
            ArchiveResult(path=str(path), num_objects=num_objects, num_bytes=num_bytes)
        )
    else:
        render.emit_line(f"{path}: {format_count(num_objects, 'object')}, {format_size(num_bytes)}")


def _facts(found: ObjectStat) -> list[tuple[str, str]]:
    facts = [
        ("name", shown(found.name)),
        ("size", f"{format_size(found.value_bytes)} ({found.value_bytes} bytes)"),
        ("version", _version(found.version)),
        ("nodes", ", ".join(found.nodes)),
    ]
    if found.num_chunks:
        facts.append(("chunks", str(found.num_chunks)))
    if found.dtype:
        facts.append(("array", f"{found.kind} {found.dtype} {list(found.shape)}"))
    return facts


def _version(version: int) -> str:
    """Of the master's life that gave it, and the number there."""
    return f"{version >> 40}.{version & ((1 << 40) - 1)}"


def _name(text: str) -> bytes:
    """What the shell gave, byte for byte."""
    name = os.fsencode(text)
    if not 0 < len(name) <= 256:
        raise typer.BadParameter(f"a name has 1 to 256 bytes, not {len(name)}")
    return name


def _prefix(text: str) -> bytes:
    return os.fsencode(text)


def shown(name: bytes) -> str:
    """As text; bytes that are none as escapes."""
    return name.decode("utf-8", "backslashreplace")


def _read(file: str) -> Any:
    """A file is mapped, not read: a large value is not copied here. Pipes, and /proc's files, say no size."""
    if file == "-":
        return sys.stdin.buffer.read()
    path = Path(file)
    try:
        if path.is_char_device():
            raise ConfigError(f"{path}: a device has no end; name a file, or - for stdin")
        return np.memmap(path, np.uint8, "r") if path.stat().st_size else path.read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _size(value: Any) -> int:
    return len(value) if isinstance(value, bytes) else int(value.nbytes)
