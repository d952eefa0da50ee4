"""mcctl status: one look at the cluster."""

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.core.units import format_count, format_size
from daemons.protocol.block import CacheStatReply
from daemons.protocol.node import ListNodesReply, ModelDescription
from daemons.protocol.request import ListedRequest
from mcctl import exit_codes, render
from mcctl.commands import new_app
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


@app.command()
@prints(StatusResult)
@watchable
def status(context: typer.Context) -> int:
    """Nodes, pool and recent requests in a few lines. Exits with 7 when no model can be served.

    \b
    Example: mcctl status --endpoint tcp://10.0.0.1:7700
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        result = _result(
            client.nodes(), client.models(), client.cache_stat(), client.requests(_RECENT)
        )
    if settings.output == "json":
        render.emit_json(result)
    elif settings.output == "plain":
        for name, value in _facts(result):
            render.emit_line(f"{name}\t{value}")
    else:
        render.show_facts(_facts(result))
    return exit_codes.OK if result.is_serving else exit_codes.BY_FAMILY["unavailable"]


def _result(
    nodes: ListNodesReply,
    models: list[ModelDescription],
    pool: CacheStatReply,
    requests: list[ListedRequest],
) -> StatusResult:
    by_state: dict[str, int] = {}
    by_role: dict[str, int] = {}
    roles_by_model: dict[str, set[str]] = {}
    for node in nodes.nodes:
        by_state[node.state] = by_state.get(node.state, 0) + 1
        by_role[node.node.role] = by_role.get(node.node.role, 0) + 1
        if node.node.model is not None and node.state == "alive":
            roles_by_model.setdefault(node.node.model.name, set()).add(node.node.role)
    return StatusResult(
        master=nodes.master.control,
        incarnation=nodes.incarnation,
        is_serving=any({"prefill", "decode"} <= roles for roles in roles_by_model.values()),
        nodes_by_state=by_state,
        nodes_by_role=by_role,
        models=sorted({model.name for model in models}),
        pool=pool,
        recent_requests=len(requests),
        recent_failed=sum(request.state == "failed" for request in requests),
        recent_reused_tokens=sum(request.num_matched_tokens for request in requests),
        recent_prompt_tokens=sum(request.num_prompt_tokens for request in requests),
    )


def _facts(result: StatusResult) -> list[tuple[str, str]]:
    pool = result.pool
    share = pool.num_hit_blocks / max(pool.num_lookup_blocks, 1)
    return [
        ("master", f"{result.master} (incarnation {result.incarnation})"),
        ("serving", ", ".join(result.models) if result.is_serving else "nothing"),
        ("nodes", _counts(result.nodes_by_role) + " (" + _counts(result.nodes_by_state) + ")"),
        (
            "pool",
            f"{format_count(pool.num_blocks, 'block')}, "
            f"{format_size(pool.used_bytes)} of {format_size(pool.capacity_bytes)}, "
            f"{share:.0%} of {pool.num_lookup_blocks} asked blocks were there",
        ),
        (
            "requests",
            f"{result.recent_requests} recent, {result.recent_failed} failed, "
            f"{result.recent_reused_tokens} of {result.recent_prompt_tokens} prompt tokens matched",
        ),
    ]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
