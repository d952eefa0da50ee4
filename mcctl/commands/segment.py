"""mcctl segment: the memory that cache nodes lend, mounted and unmounted while they run."""

import time
from collections.abc import Callable
from typing import Annotated, Final

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.client.segments import NodeSegments, lender, lenders, states_of
from daemons.core.errors import Exhausted, Unavailable
from daemons.core.ids import NodeId
from daemons.core.units import format_count, format_size, parse_size
from daemons.protocol.segment import SegmentState
from mcctl import render
from mcctl.commands import check_size, confirm, new_app
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import Settings, settings_of
from mcctl.watching import watchable

app = new_app()

POLL_S: Final = 0.2
STUCK_S: Final = 30.0
"""Without one more byte or block in all that time something must be put right first."""

Node = Annotated[str, typer.Option("--node", help="The id of the cache node.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Return when it is done.")]


class NodeSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of one node. `unreachable`: why the node says nothing; what is shown is what it said before."""

    node: str
    segment: SegmentState
    unreachable: str = ""


@app.callback()
def _noun() -> None:
    """The memory that cache nodes lend to the pool."""


@app.command("list")
@prints({"segments": list[NodeSegment]})
@watchable
def list_segments(
    context: typer.Context,
    node: Annotated[str, typer.Option("--node", help="Of this cache node alone.")] = "",
) -> None:
    """Every segment: where it is, how large, how full.

    \b
    Example: mcctl segment list
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        nodes = client.nodes().nodes
    chosen = [lender(nodes, NodeId(node))] if node else lenders(nodes)
    found: list[NodeSegment] = []
    for each in chosen:
        states, why = states_of(each, settings.wait_s, settings.key_file)
        found += [
            NodeSegment(node=each.node.node, segment=state, unreachable=why) for state in states
        ]
    columns = [
        Column("node", lambda s: s.node),
        Column("segment", lambda s: str(s.segment.number), is_number=True),
        Column("status", status_text),
        Column("size", lambda s: format_size(s.segment.capacity_bytes), is_number=True),
        Column("used", lambda s: format_size(s.segment.used_bytes), is_number=True),
        Column("blocks", lambda s: str(s.segment.num_blocks), is_number=True),
        Column("path", lambda s: s.segment.path, extra=1),
    ]
    render.emit(settings.output, {"segments": found}, columns, found)


@app.command()
@prints(SegmentState)
def add(
    context: typer.Context,
    node: Node,
    num_bytes: Annotated[
        str, typer.Option("--bytes", help='How much, such as "4GiB".', callback=check_size)
    ],
    path: Annotated[
        str,
        typer.Option(
            "--path", help="A directory on a tmpfs of its host; default: that of its first segment."
        ),
    ] = "",
    wait: Wait = True,
) -> None:
    """Lend more memory of a running cache node; also after its restarts.

    \b
    Example: mcctl segment add --node cachenode-2 --bytes 4GiB
    """
    settings = settings_of(context)
    size_bytes = parse_size(num_bytes)
    segments = _segments_of(settings, node)
    state = segments.add(size_bytes, path)
    if wait:
        with render.progress(f"segment {state.number} of {node}") as progress:
            state = until_mounted(segments, state, progress)
    if settings.output == "json":
        render.emit_json(state)
    elif wait:
        size = format_size(state.capacity_bytes)
        render.emit_line(f"segment {state.number} of {node} is mounted: {size} at {state.path}")
    else:
        render.emit_line(f"segment {state.number} of {node} is being allocated")


@app.command()
@prints({"node": str, "segment": int, "is_gone": bool})
def remove(
    context: typer.Context,
    number: Annotated[int, typer.Argument(help="Its number in mcctl segment list.", min=0)],
    node: Node,
    wait: Wait = True,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Give memory of a running cache node back. Its blocks move first.

    \b
    Example: mcctl segment remove 2 --node cachenode-2
    """
    settings = settings_of(context)
    segments = _segments_of(settings, node)
    state = segments.find(number)
    if state is not None and state.status != "leaving":
        blocks = format_count(state.num_blocks, "block")
        size = format_size(state.capacity_bytes)
        question = (
            f"Move {blocks} out of segment {number} of {node}, and give up what finds no room?"
            if state.num_blocks
            else f"Give the empty segment {number} of {node}, {size}, back?"
        )
        confirm(question, yes=yes)
    state = segments.remove(number)
    if wait:
        with render.progress(f"segment {number} of {node}") as progress:
            until_gone(segments, state, progress)
    if settings.output == "json":
        render.emit_json({"node": node, "segment": number, "is_gone": wait})
    elif wait:
        render.emit_line(f"segment {number} of {node} is gone, its memory is free")
    else:
        render.emit_line(
            f"segment {number} of {node} is leaving; `mcctl segment list` says how far it is"
        )


def until_mounted(
    segments: NodeSegments, state: SegmentState, progress: Callable[[str], object]
) -> SegmentState:
    """Raises Exhausted when it failed, Unavailable when nothing gets on."""
    best, moved_s = -1, time.monotonic()
    while True:
        found = segments.find(state.number)
        if found is None or found.status == "failed":
            why = found.why if found is not None else "the node was restarted and forgot it"
            raise Exhausted(f"segment {state.number} was not added: {why}")
        if found.status == "mounted":
            return found
        progress(
            f"{format_size(found.done_bytes)} of {format_size(found.capacity_bytes)} allocated"
        )
        best, moved_s = _watch(found.done_bytes, best, moved_s, "allocated nothing more")
        time.sleep(POLL_S)


def until_gone(
    segments: NodeSegments, state: SegmentState, progress: Callable[[str], object]
) -> None:
    """Raises Unavailable when nothing gets on."""
    best, moved_s = -1, time.monotonic()
    while True:
        found = segments.find(state.number)
        if found is None:
            return
        why = f"; {found.why}" if found.why else ""
        progress(f"{format_count(found.num_blocks, 'block')} left in it{why}")
        what = f"has {format_count(found.num_blocks, 'block')} left{why}; it goes on when that is put right"
        best, moved_s = _watch(-found.num_blocks, best, moved_s, what)
        time.sleep(POLL_S)


def status_text(found: NodeSegment) -> str:
    """With how far it is."""
    state = found.segment
    if found.unreachable:
        return "unreachable"
    if state.status == "allocating":
        return f"allocating, {state.done_bytes / state.capacity_bytes:.0%}"
    return f"{state.status}: {state.why}" if state.why else state.status


def _watch(now: int, best: int, moved_s: float, what: str) -> tuple[int, float]:
    """(the best so far, when that was). Raises Unavailable."""
    if now != best:
        return now, time.monotonic()
    if time.monotonic() - moved_s > STUCK_S:
        raise Unavailable(f"the node {what} (for {STUCK_S:g} s)")
    return best, moved_s


def _segments_of(settings: Settings, node: str) -> NodeSegments:
    """Raises NotFound, Unavailable."""
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        found = lender(client.nodes().nodes, NodeId(node))
    return NodeSegments(found.node.control, settings.wait_s, settings.key_file)
