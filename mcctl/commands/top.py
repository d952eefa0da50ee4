"""mcctl top: the cluster as it works, redrawn every second."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from daemons.client.cluster import ClusterClient
from daemons.core.errors import Unavailable
from daemons.core.units import format_count, format_duration, format_usage
from mcctl import render
from mcctl.commands import new_app
from mcctl.durations import duration
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.views.node_state import state_text
from mcctl.views.top import Frame, Look, NodeLine, RequestLine, frame

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

app = new_app()

_RECENT: Final = 200
_BAR_CHARS: Final = 12


@app.command()
@prints(Frame, is_stream=True)
def top(
    context: typer.Context,
    interval: Annotated[float, duration(least_s=0.1, help="Between two looks.")] = 1.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many frames.")
    ] = None,
) -> None:
    """Nodes, tiers, hit ratio, TTFT and the latest requests, until Ctrl-C. With --output json, one object per line.

    \b
    Example: mcctl top
    Example: mcctl top --count 1 --output json
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        frames = look_again(client, interval, count)
        if settings.output == "table" and sys.stdout.isatty():
            _draw(frames)
            return
        for shown in frames:
            if isinstance(shown, Unavailable):
                render.complain(shown.message)
            elif settings.output == "json":
                render.emit_json_line(shown)
            else:
                _print(shown)


def look_again(
    client: ClusterClient, interval_s: float, count: int | None
) -> Iterator[Frame | Unavailable]:
    """A master that goes away in between is said and waited for, unless frames are counted."""
    before: Look | None = None
    number = 0
    while count is None or number < count:
        if number:
            time.sleep(interval_s)
        try:
            now = Look(
                time.monotonic(), client.nodes(), client.cache_stat(), client.requests(_RECENT)
            )
        except Unavailable as error:
            if number == 0 or count is not None:
                raise
            yield error
            before = None  # the next one counts from nothing
            continue
        yield frame(now, before)
        before = now
        number += 1


def _draw(frames: Iterator[Frame | Unavailable]) -> None:
    """On a screen of its own, which Ctrl-C leaves as it was. While the master is away the last picture stays."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    target = render.console()
    drawn: RenderableType = ""
    with Live(console=target, auto_refresh=False, screen=True) as live:
        for shown in frames:
            if isinstance(shown, Unavailable):
                live.update(Group(Text(f"AWAY: {shown.message}", "bold red"), drawn), refresh=True)
                continue
            drawn = picture(shown, target)
            live.update(drawn, refresh=True)


def _print(shown: Frame) -> None:
    for name, value in _facts(shown):
        render.emit_line(f"{name}\t{value}")
    for line in shown.nodes:
        render.emit_line("\t".join(column.text(line) for column in _NODE_COLUMNS))
    for request in shown.requests:
        render.emit_line("\t".join(column.text(request) for column in _REQUEST_COLUMNS))


def picture(shown: Frame, target: "Console") -> "RenderableType":
    """A frame as this terminal has room for it, without the columns that would break others' words."""
    from rich.console import Group
    from rich.text import Text

    head = "   ".join(f"{name} {value}" for name, value in _facts(shown))
    nodes, hidden = render.fitted(target, "nodes", _NODE_COLUMNS, shown.nodes)
    requests, more = render.fitted(target, "latest requests", _REQUEST_COLUMNS, shown.requests)
    foot = render.left_out(hidden + more) if hidden + more else ""
    return Group(Text(head, style="bold"), nodes, requests, Text(foot, style="dim"))


def _facts(shown: Frame) -> list[tuple[str, str]]:
    return [
        ("master", f"{shown.master} (incarnation {shown.incarnation})"),
        (
            "requests",
            f"{shown.requests_per_s:.1f}/s, {shown.running} running, {shown.failed} failed",
        ),
        (
            "TTFT",
            f"p50 {format_duration(shown.ttft_p50_s)}, p90 {format_duration(shown.ttft_p90_s)}"
            if shown.ttft_p90_s > 0
            else "-",
        ),
        ("reused", f"{shown.reused_fraction:.0%} of prompt tokens" if shown.requests else "-"),
        ("hits", f"{shown.hit_fraction:.0%} of blocks" if shown.asked_blocks > 0 else "-"),
        (
            "pool",
            f"{format_count(shown.num_blocks, 'block')}, "
            f"{format_usage(shown.used_bytes, shown.capacity_bytes)}, "
            f"+{shown.stored_per_s:.0f}/s -{shown.evicted_per_s:.0f}/s",
        ),
    ]


def _memory(line: NodeLine) -> str:
    if not line.capacity_bytes:
        return ""
    filled = round(_BAR_CHARS * min(1.0, line.used_bytes / line.capacity_bytes))
    bar = "█" * filled + "░" * (_BAR_CHARS - filled)
    return f"{bar} {format_usage(line.used_bytes, line.capacity_bytes)}"


def _seconds(value: Callable[[RequestLine], float | None]) -> Callable[[RequestLine], str]:
    return lambda line: "" if value(line) is None else format_duration(value(line) or 0.0)


_NODE_COLUMNS: Final = [
    Column("role", lambda line: line.role, extra=1),
    Column("node", lambda line: line.node),
    Column("host", lambda line: line.host, extra=3),
    Column("state", lambda line: state_text(line.state, is_draining=line.is_draining)),
    Column("memory", _memory),
    Column("blocks", lambda line: str(line.num_blocks or ""), is_number=True, extra=2),
    Column("running", lambda line: str(line.num_running or ""), is_number=True),
    Column("queued", lambda line: str(line.num_queued or ""), is_number=True),
    Column("tokens queued", lambda line: str(line.queued_tokens or ""), is_number=True, extra=4),
    Column(
        "step",
        lambda line: format_duration(line.step_s) if line.step_s else "",
        is_number=True,
        extra=5,
    ),
]
_REQUEST_COLUMNS: Final = [
    Column("request", lambda line: line.request_id),
    Column("state", lambda line: line.state),
    Column("age", _seconds(lambda line: line.age_s), is_number=True, extra=1),
    Column("prompt", lambda line: str(line.prompt_tokens), is_number=True),
    Column("reused", lambda line: str(line.reused_tokens), is_number=True),
    Column("answer", lambda line: str(line.generated_tokens), is_number=True),
    Column("predicted", _seconds(lambda line: line.predicted_ttft_s), is_number=True, extra=2),
    Column("TTFT", _seconds(lambda line: line.actual_ttft_s), is_number=True),
    Column("prefill", lambda line: line.prefill or "", extra=3),
    Column("decode", lambda line: line.decode or "", extra=4),
]
