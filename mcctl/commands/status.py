"""mcctl status: one look at the cluster."""

from collections import Counter

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.core.units import format_count, format_duration, format_usage
from daemons.protocol.cache import CacheStatReply
from daemons.protocol.node import ListNodesReply, ModelDescription
from daemons.protocol.request_list import ListedRequest
from mcctl import exit_codes, render
from mcctl.commands import new_app
from mcctl.health import Health, Reason, reasons, served_models
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.watching import watchable

app = new_app()

_RECENT = 100


class StatusResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `--output json` prints; fields are only ever added."""

    master: str
    incarnation: int
    is_serving: bool
    """Some prefill and some decode instance of one model are alive."""
    nodes_by_state: dict[str, int]
    nodes_by_role: dict[str, int]
    models: list[str]
    pool: CacheStatReply
    recent_requests: int
    recent_failed: int
    recent_reused_tokens: int
    recent_prompt_tokens: int
    health: Health
    """down: not serving; degraded: serving, and `reasons` says what is not as it should be."""
    reasons: list[Reason]
    recent_cancelled: int
    """Given up by their clients."""


@app.command()
@prints(StatusResult)
@watchable
def status(context: typer.Context) -> int:
    """Is it well, and if not, why: node by node, since when, what it means, the next command.

    Then nodes, pool and recent requests in a few lines. Exits with 7 when no model can be served.

    \b
    Example: mcctl status --endpoint tcp://10.0.0.1:7700
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        nodes, requests = client.nodes(), client.requests(_RECENT)
        result = _result(nodes, client.models(), client.cache_stat(), requests)
    why = reasons(nodes, requests, is_local=settings.local_cluster is not None)
    health: Health = "down" if not result.is_serving else "degraded" if why else "ok"
    result = msgspec.structs.replace(result, health=health, reasons=why)
    if settings.output == "json":
        render.emit_json(result)
    elif settings.output == "plain":
        for name, value in _facts(result):
            line = value.replace("\n", "; ")
            render.emit_line(f"{name}\t{line}")
    else:
        render.show_facts(_facts(result))
    return exit_codes.OK if result.is_serving else exit_codes.BY_FAMILY["unavailable"]


def _result(
    nodes: ListNodesReply,
    models: list[ModelDescription],
    pool: CacheStatReply,
    requests: list[ListedRequest],
) -> StatusResult:
    by_state: Counter[str] = Counter(listed.state for listed in nodes.nodes)
    by_role: Counter[str] = Counter(listed.node.role for listed in nodes.nodes)
    return StatusResult(
        master=nodes.master.control,
        incarnation=nodes.incarnation,
        is_serving=bool(served_models(nodes.nodes)),
        nodes_by_state=dict(by_state),
        nodes_by_role=dict(by_role),
        models=sorted({model.name for model in models}),
        pool=pool,
        recent_requests=len(requests),
        recent_failed=sum(request.state == "failed" for request in requests),
        recent_reused_tokens=sum(request.num_matched_tokens for request in requests),
        recent_prompt_tokens=sum(request.num_prompt_tokens for request in requests),
        recent_cancelled=sum(request.is_cancelled for request in requests),
        health="ok",
        reasons=[],
    )


def _facts(result: StatusResult) -> list[tuple[str, str]]:
    pool = result.pool
    found = "nothing asked for yet"
    if pool.num_lookup_blocks:
        share = pool.num_hit_blocks / pool.num_lookup_blocks
        found = f"{share:.0%} of {pool.num_lookup_blocks} asked blocks were there"
    return [
        ("health", result.health if result.health == "ok" else result.health.upper()),
        *(("why", _why(reason)) for reason in result.reasons),
        ("master", f"{result.master} (incarnation {result.incarnation})"),
        ("serving", ", ".join(result.models) if result.is_serving else "nothing"),
        ("nodes", _counts(result.nodes_by_role) + " (" + _counts(result.nodes_by_state) + ")"),
        (
            "pool",
            f"{format_count(pool.num_blocks, 'block')}, "
            f"{format_usage(pool.used_bytes, pool.capacity_bytes)}, {found}",
        ),
        (
            "requests",
            f"{result.recent_requests} recent, {result.recent_failed} failed, {result.recent_cancelled} cancelled, "
            f"{result.recent_reused_tokens} of {result.recent_prompt_tokens} prompt tokens matched",
        ),
    ]


def _why(reason: Reason) -> str:
    since = "" if reason.since_s is None else f", since {format_duration(reason.since_s)}"
    return f"{reason.what}{since}: {reason.problem}\n{reason.meaning}\nnext: {reason.next}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
