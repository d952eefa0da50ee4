"""mcctl events: what the master publishes, as it happens."""

import time
from typing import Annotated, Any

import typer

from daemons.client.cluster import ClusterClient, Event, watch_events
from daemons.config.forms import is_endpoint
from daemons.core.ids import short
from daemons.protocol.block import BlockRemoved, BlockStored
from daemons.protocol.node import NodeJoined, NodeLeft
from mcctl import render
from mcctl.commands import new_app
from mcctl.settings import settings_of

app = new_app()

TOPICS = {
    "stored": "blockstored",
    "removed": "blockremoved",
    "joined": "nodejoined",
    "left": "nodeleft",
}
_POLL_S = 0.2


@app.command()
def events(
    context: typer.Context,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="stored, removed, joined or left; may be repeated; all otherwise."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0, help="End after so many seconds.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--events", help="The master's node.events, where it is not the next port."),
    ] = None,
) -> None:
    """Follow blocks and nodes as they come and go, until Ctrl-C. With --output json, one object per line.

    \b
    Example: mcctl events --topic joined --topic left
    """
    settings = settings_of(context)
    unknown = set(topic or ()) - set(TOPICS)
    if unknown:
        raise typer.BadParameter(f"--topic {unknown.pop()}: write one of {', '.join(TOPICS)}")
    if source is not None and not is_endpoint(source):
        raise typer.BadParameter(
            f"--events {source}: write tcp://HOST:PORT, the master's node.events"
        )
    topics = tuple(TOPICS[name] for name in topic or ())
    if source is None:  # a subscription is silent where nobody publishes
        with ClusterClient(settings.master, settings.wait_s) as client:
            client.nodes()
    ends_s = None if seconds is None else time.monotonic() + seconds
    last = 0
    for item in watch_events(source or settings.events, topics, _POLL_S):
        if item is not None:
            sequence, event = item
            if not topics and last and sequence > last + 1:
                render.note(f"[{sequence - last - 1} events missed: this reader was too slow]")
            last = sequence
            if settings.output == "json":
                render.emit_json_line(_json(sequence, event))
            else:
                render.emit_line(f"{time.strftime('%H:%M:%S')}  {_text(event)}")
        if ends_s is not None and time.monotonic() >= ends_s:
            return


def _json(sequence: int, event: Event) -> dict[str, Any]:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return {"event": type(event).__name__, "sequence": sequence, **fields}


def _text(event: Event) -> str:
    match event:
        case BlockStored():
            meta = event.meta
            return f"block stored   {short(meta.hash)} on {event.node} ({event.tier}), {meta.model} depth {meta.depth}"
        case BlockRemoved():
            return f"block removed  {short(event.hash)} from {event.node}: {event.why}"
        case NodeJoined():
            return f"node joined    {event.node} ({event.role})"
        case NodeLeft():
            return f"node left      {event.node} ({event.role}): {event.why}"
