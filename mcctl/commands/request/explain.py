"""mcctl request explain: why a request ran where it did."""

from collections.abc import Mapping
from typing import Literal

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.core.ids import NodeId
from daemons.core.units import format_duration
from daemons.protocol.node import Role
from daemons.protocol.request_list import ListedRequest
from mcctl import render
from mcctl.commands.request.recent import KEPT_REQUESTS, RequestId, facts_of, find
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that was considered. `compute_s`: of the new tokens; on decode, of one token of the batch."""

    node: str
    role: Role | Literal["gone"]
    is_chosen: bool
    queue_s: float
    load_s: float
    compute_s: float
    total_s: float
    matched_tokens: int
    delay_s: float = 0.0
    """What its work adds to the wait of those behind, not in `total_s`; 0 where the policy does not look at it."""
    device_tokens: int = 0
    """Of these, what lies in its own KV arena."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What `request explain --output json` prints; fields are only ever added."""

    request: ListedRequest
    candidates: list[Weighed]


@prints(Explanation)
def explain(
    context: typer.Context,
    request_id: RequestId = None,
) -> None:
    """Why a recent request ran where it did, or was rejected. Every instance that was weighed, with the terms of its
    prediction, what the request took, and blocks that were staged while it was queued, or replicated for its heat.

    \b
    Example: mcctl request explain 7f3a
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        request = find(client.requests(KEPT_REQUESTS), request_id)
        roles = {listed.node.node: listed.node.role for listed in client.nodes().nodes}
    result = Explanation(request=request, candidates=weighed(request, roles))
    if settings.output == "table":
        render.show_facts(facts_of(request))
    columns = [
        Column(" ", lambda c: "*" if c.is_chosen else ""),
        Column("role", lambda c: c.role),
        Column("node", lambda c: c.node),
        Column("queue", lambda c: format_duration(c.queue_s), is_number=True),
        Column("load", lambda c: format_duration(c.load_s), is_number=True),
        Column("compute", lambda c: format_duration(c.compute_s), is_number=True),
        Column("total", lambda c: format_duration(c.total_s), is_number=True),
        Column("delays others", lambda c: format_duration(c.delay_s), is_number=True, extra=2),
        Column("reuses", lambda c: f"{c.matched_tokens} tokens", is_number=True),
        Column("on device", lambda c: f"{c.device_tokens} tokens", is_number=True, extra=1),
    ]
    title = "* was chosen" if request.prefill is not None else "none was chosen"
    render.emit(settings.output, result, columns, result.candidates, title=title)


def weighed(request: ListedRequest, roles: Mapping[NodeId, Role]) -> list[Weighed]:
    """A node that has left since is of an unknown role, unless it was chosen."""
    chosen: dict[NodeId, Role] = {}
    if request.prefill is not None and request.decode is not None:
        chosen = {request.prefill: "prefill", request.decode: "decode"}
    return [
        Weighed(
            node=candidate.node,
            role=chosen[candidate.node]
            if candidate.node in chosen
            else roles.get(candidate.node, "gone"),
            is_chosen=candidate.node in chosen,
            queue_s=candidate.queue_s,
            load_s=candidate.load_s,
            compute_s=candidate.prefill_s,
            total_s=candidate.total_s,
            matched_tokens=candidate.matched_tokens,
            delay_s=candidate.delay_s,
            device_tokens=candidate.device_tokens,
        )
        for candidate in request.candidates
    ]
