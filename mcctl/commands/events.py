"""mcctl events: what the master publishes, as it happens, and the recent past of it."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any, get_args

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.client.event_feed import EventFeed, Item, Resync, SeenEvent
from daemons.config.forms import is_endpoint
from daemons.core.ids import short
from daemons.core.units import format_count
from daemons.protocol.address import split_key, with_key
from daemons.protocol.event import BlockMoved, BlockRemoved, BlockStored, SingleEvent
from daemons.protocol.node import NodeJoined, NodeLeft
from mcctl import render
from mcctl.commands import new_app
from mcctl.durations import duration
from mcctl.numbers import check_number
from mcctl.output_schema import prints
from mcctl.settings import Output, settings_of

app = new_app()

TOPICS = {
    "stored": "blocksstored",
    "removed": "blocksremoved",
    "moved": "blocksmoved",
    "joined": "nodejoined",
    "left": "nodeleft",
}
_POLL_S = 0.2
_ADDED = {"sequence": int, "age_s": float}
_LINES = (
    *(
        {"event": kind.__name__, **_ADDED, **{f.name: f.type for f in msgspec.structs.fields(kind)}}
        for kind in get_args(SingleEvent)
    ),
    {"event": "Resync", "incarnation": int, "why": str, "num_missed": int | None},
)


@app.command()
@prints(*_LINES, is_stream=True)
def events(
    context: typer.Context,
    topic: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(TOPICS)}; may be repeated; all otherwise."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="[INCARNATION:]SEQ", help="From this number on, as far as the master keeps it."
        ),
    ] = None,
    last: Annotated[int | None, typer.Option(min=0, help="The last so many.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on after --since or --last.")
    ] = False,
    seconds: Annotated[float | None, duration("--for", help="End after so long.")] = None,
    source: Annotated[
        str | None,
        typer.Option("--events", help="The master's node.events, where it is not the next port."),
    ] = None,
) -> None:
    """Follow blocks and nodes as they come and go, until Ctrl-C. With --output json, one object per line.

    With --since or --last: what the master still keeps of the past, and then the end unless --follow.

    \b
    Example: mcctl events --last 20 --follow --topic joined --topic left
    """
    settings = settings_of(context)
    unknown = set(topic or ()) - set(TOPICS)
    if unknown:
        raise typer.BadParameter(f"--topic {unknown.pop()}: write one of {', '.join(TOPICS)}")
    if source is not None and not is_endpoint(source):
        raise typer.BadParameter(
            f"--events {source}: write tcp://HOST:PORT, the master's node.events"
        )
    if since is not None and last is not None:
        raise typer.BadParameter("--since and --last exclude each other")
    begin = None if since is None else _numbers(since)
    topics = tuple(TOPICS[name] for name in topic or ())
    where = with_key(source, split_key(settings.master)[1]) if source else settings.events
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        feed = EventFeed(client, where, topics)
        try:
            if begin is not None:
                _show(feed.since(*begin), settings.output)
            elif last is not None:
                _show(feed.latest(last), settings.output)
            if follow or (begin is None and last is None):
                _follow(feed, settings.output, seconds)
        finally:
            feed.close()


_MAX_SINCE = 80
"""Characters; no two numbers are as long."""


def _numbers(since: str) -> tuple[int, int | None]:
    incarnation, _, sequence = since.rpartition(":")
    is_short = len(since) <= _MAX_SINCE
    if not (is_short and sequence.isdecimal() and (incarnation or "0").isdecimal()):
        raise typer.BadParameter(
            f"--since {since[:80]}: write a number of an event, or INCARNATION:NUMBER, as `mcctl events` shows them"
        )
    numbers = int(sequence), int(incarnation) if incarnation else None
    for number in numbers:
        check_number(number)
    return numbers


def _show(items: Iterator[Item], output: Output) -> None:
    for item in items:
        _emit(item, output)


def _follow(feed: EventFeed, output: Output, seconds: float | None) -> None:
    ends_s = None if seconds is None else time.monotonic() + seconds
    why_away = ""
    if output == "table" and sys.stdout.isatty():
        render.note("[following; Ctrl-C ends]")
    for item in feed.follow(_POLL_S):
        if item is not None:
            _emit(item, output)
        if feed.why_away != why_away:
            why_away = feed.why_away
            render.note(f"[{why_away}]" if why_away else "[the master answers again]")
        if ends_s is not None and time.monotonic() >= ends_s:
            return


def _emit(item: Item, output: Output) -> None:
    if isinstance(item, Resync):
        missed = (
            "events" if item.num_missed is None else f"{format_count(item.num_missed, 'event')}"
        )
        render.note(f"[{missed} missed: {item.why}; `mcctl cache list` shows what is there now]")
        if output == "json":
            fields = {"why": item.why, "num_missed": item.num_missed}
            render.emit_json_line({"event": "Resync", "incarnation": item.incarnation, **fields})
    elif output == "json":
        render.emit_json_line(_json(item))
    else:
        at = time.strftime("%H:%M:%S", time.localtime(time.time() - item.age_s))
        number = f"{item.event.incarnation}:{item.sequence}"
        separator = "\t" if output == "plain" else "  "
        render.emit_line(separator.join((at, number, _text(item.event))))


def _json(item: SeenEvent) -> dict[str, Any]:
    event = item.event
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return {"event": type(event).__name__, "sequence": item.sequence, "age_s": item.age_s, **fields}


def _text(event: SingleEvent) -> str:
    match event:
        case BlockStored():
            meta = event.meta
            where = _place(event.node, event.tier)
            what = f"{meta.model} depth {meta.depth}" if meta.model else "of an object"
            return f"block stored   {short(meta.hash)} on {where}, {what}"
        case BlockRemoved():
            return f"block removed  {short(event.hash)} from {_place(event.node, event.tier)}: {event.why}"
        case BlockMoved():
            where = _place(event.node, event.tier)
            return f"block moved    {short(event.hash)} from {_place(event.from_node, event.from_tier)} to {where}"
        case NodeJoined():
            return f"node joined    {event.node} ({event.role})"
        case NodeLeft():
            return f"node left      {event.node} ({event.role}): {event.why}"


def _place(node: str, tier: str) -> str:
    return f"{node} ({tier})"
