"""mcctl cache put, get and rm, and what list and stat say of objects."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from daemons.client.objects.format import version_text
from daemons.client.objects.store import ObjectStat, ValueType
from daemons.config.forms import complaint
from daemons.core.errors import NotFound, Rejected
from daemons.core.units import format_count, format_duration, format_size
from daemons.protocol.objects import ListedName, NamespaceStat
from mcctl import render
from mcctl.cache.object_store import (
    name_of,
    open_store,
    read_value,
    shown,
    size_of,
    write_value,
)
from mcctl.cache.own_address import own_address
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import Settings, settings_of

Namespace = Annotated[str, typer.Option(help="The namespace of the names.")]


def _check_host(value: str) -> str:
    why = complaint("own", value) if value else None
    if why:
        raise typer.BadParameter(why)
    return value


BindHost = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Where cache nodes read from this command; default: its address towards the master.",
        callback=_check_host,
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


@prints(PutResult)
def put(
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
    value = read_value(file)
    with open_store(settings, namespace, bind_host or own_address(settings.master)) as store:
        version = (store.replace if replace else store.put)(
            name_of(name), value, like=ValueType(), replicas=replicas, min_sealed=min_sealed
        )
    result = PutResult(name=shown(name_of(name)), num_bytes=size_of(value), version=version)
    if settings.output == "json":
        render.emit_json(result)
    else:
        render.emit_line(
            f"{result.name}: {format_size(result.num_bytes)}, version {version_text(version)}"
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
            value = store.get_range(name_of(name), offset, end)
        else:
            value = store.get(name_of(name))
    if value is None:
        raise NotFound(f"no object {shown(name_of(name))!r} {_elsewhere(namespace)}")
    if out is None:
        sys.stdout.buffer.write(value)
        return
    write_value(out, value)
    if settings.output == "json":
        path = shown(os.fsencode(out))
        render.emit_json(GetResult(name=shown(name_of(name)), num_bytes=len(value), path=path))


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
        found = store.delete_many([name_of(name) for name in names])
    said = [(shown(name_of(name)), was_there) for name, was_there in zip(names, found, strict=True)]
    result = DeleteResult(
        deleted=[name for name, was_there in said if was_there],
        missing=[name for name, was_there in said if not was_there],
    )
    if settings.output == "json":
        render.emit_json(result)
    else:
        render.emit_line(f"{format_count(len(result.deleted), 'object')} deleted")
    if result.missing:
        raise NotFound(f"no object {', '.join(result.missing)} {_elsewhere(namespace)}")


def list_objects(settings: Settings, namespace: str, prefix: str, limit: int) -> None:
    """`cache list --namespace`."""
    listed: list[ListedName] = []
    with open_store(settings, namespace) as store:
        for each in store.list(os.fsencode(prefix)):
            listed.append(each)
            if len(listed) == limit:
                break
    listed.sort(key=lambda each: each.name)
    columns = [
        Column("name", lambda o: shown(o.name)),
        Column("size", lambda o: format_size(o.value_bytes), is_number=True),
        Column("version", lambda o: version_text(o.version), extra=2),
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
        found = store.stat(name_of(name))
    if found is None:
        raise NotFound(f"no object {shown(name_of(name))!r} {_elsewhere(namespace)}")
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
    render.emit_facts(settings.output, _facts(found))


def namespace_facts(namespaces: Sequence[NamespaceStat]) -> list[tuple[str, str]]:
    """For `cache stat`."""
    return [
        (
            f"objects in {shown(each.namespace) or 'the unnamed namespace'}",
            f"{each.num_names}, {format_size(each.value_bytes)}",
        )
        for each in namespaces
    ]


def _facts(found: ObjectStat) -> list[tuple[str, str]]:
    facts = [
        ("name", shown(found.name)),
        ("size", f"{format_size(found.value_bytes)} ({found.value_bytes} bytes)"),
        ("version", version_text(found.version)),
        ("nodes", ", ".join(found.nodes)),
    ]
    if found.num_chunks:
        facts.append(("chunks", str(found.num_chunks)))
    if found.dtype:
        facts.append(("array", f"{found.kind} {found.dtype} {list(found.shape)}"))
    return facts


def _elsewhere(namespace: str) -> str:
    """Behind what is not there: where one looks, and with what. Without --namespace it is one like any other."""
    return (
        f"in namespace {namespace!r}; mcctl cache list --namespace {namespace!r} shows those there"
    )
