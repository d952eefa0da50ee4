"""Why a cluster is not well: each reason with what it is about, since when, what it means, and the next command.

Pure: from what the master lists. `mcctl status` shows it, and `mcctl doctor` takes its commands from here.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from daemons.core.units import format_count, format_duration
from daemons.protocol.node import ListedNode, ListNodesReply, NodeDescription
from daemons.protocol.request_list import ListedRequest

Health = Literal["ok", "degraded", "down"]

RECENT_S: Final = 300.0
"""Requests that failed or were rejected longer ago are no reason any more."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be; fields are only ever added."""

    what: str
    """A node, a model, or what the cluster has none of."""
    problem: str
    since_s: float | None
    """How long it has been like this; None where the master does not know."""
    meaning: str
    next: str
    """What to type, and where."""


_GONE: Final = {
    "cachenode": "its blocks are not read: prompts are computed again where no other node has them",
    "prefill": "it takes no prompts, the other prefill instances have more to do",
    "decode": "it takes no requests, and what it was answering was begun again elsewhere or failed",
    "gateway": "clients of its address get no answer",
    "master": "nobody is told where to go",
}


def reasons(
    listed: ListNodesReply, requests: Sequence[ListedRequest], *, is_local: bool
) -> list[Reason]:
    """Those that stop the cluster from serving come first. `is_local`: it is that of `mcctl cluster up`."""
    return [
        *_missing(listed.nodes, is_local=is_local),
        *(reason for node in listed.nodes for reason in _of_node(node, is_local=is_local)),
        *_of_reuse(listed.nodes),
        *_versions(listed),
        *_of_requests(requests),
    ]


def served_models(nodes: Sequence[ListedNode]) -> list[str]:
    """Names of those with a living prefill and decode instance that share KV."""
    roles: defaultdict[tuple[str, bytes], set[str]] = defaultdict(set)
    for node in _alive(nodes):
        if node.model is not None:
            roles[node.model.name, node.model.namespace].add(node.role)
    return sorted({name for (name, _), found in roles.items() if {"prefill", "decode"} <= found})


def look_at(node: NodeDescription, *, is_local: bool) -> str:
    """The commands that show what became of a daemon."""
    if is_local:
        return f"mcctl logs {node.node}; to start it again: mcctl cluster restart {node.node}"
    return (
        f"on {node.host}: mcctl service list {node.role}; mcctl logs {node.role}; "
        f"to start it again: mcctl service start {node.role}"
    )


def start_one(role: str, *, is_local: bool) -> str:
    """The commands that bring the cluster an instance of a role that it has none of."""
    if is_local:
        return f"mcctl logs {role}; to start it again: mcctl cluster restart {role}"
    return f"on a host with an mc-{role}@NAME.toml: mcctl service start {role}; mcctl logs {role}"


def _alive(nodes: Sequence[ListedNode]) -> list[NodeDescription]:
    return [listed.node for listed in nodes if listed.state == "alive"]


def _missing(nodes: Sequence[ListedNode], *, is_local: bool) -> Iterator[Reason]:
    alive = _alive(nodes)
    by_model: defaultdict[str, set[str]] = defaultdict(set)
    for listed in nodes:
        if listed.node.model is not None:
            by_model[listed.node.model.name] |= {listed.node.role} & {n.role for n in alive}
    for model, roles in sorted(by_model.items()) or [("any model", set[str]())]:
        for role in sorted({"prefill", "decode"} - roles):
            yield Reason(
                what=model,
                problem=f"no {role} instance of it is alive",
                since_s=_heard_s(nodes, role),
                meaning="requests for it get 503",
                next=start_one(role, is_local=is_local),
            )
    for role, meaning in (
        ("gateway", "nobody can ask over HTTP"),
        ("cachenode", "nothing is kept: every prompt is computed"),
    ):
        if role not in {node.role for node in alive}:
            yield Reason(
                what=role,
                problem=f"no {role} is alive",
                since_s=_heard_s(nodes, role),
                meaning=meaning,
                next=start_one(role, is_local=is_local),
            )


def _heard_s(nodes: Sequence[ListedNode], role: str) -> float | None:
    """Since the last one of a role was heard of."""
    return min((n.last_beat_s for n in nodes if n.node.role == role), default=None)


def _of_node(listed: ListedNode, *, is_local: bool) -> Iterator[Reason]:
    node = listed.node
    if listed.state == "dead":
        yield Reason(
            what=node.node,
            problem=f"{node.role} on {node.host} is dead",
            since_s=listed.last_beat_s,
            meaning=_GONE[node.role],
            next=look_at(node, is_local=is_local),
        )
    elif listed.state == "suspect":
        yield Reason(
            what=node.node,
            problem=f"{node.role} on {node.host} is suspect: its beats stay away, or a reader failed at it",
            since_s=listed.last_beat_s,
            meaning="others are preferred, nothing of it is dropped; one beat makes it alive again",
            next=look_at(node, is_local=is_local),
        )
    elif listed.is_draining:
        left = (
            "" if not listed.left_blocks else f", {format_count(listed.left_blocks, 'block')} left"
        )
        yield Reason(
            what=node.node,
            problem=f"drains{left}",
            since_s=None,
            meaning="nothing new is stored there",
            next=f"mcctl wait drained {node.node}, then stop it; or mcctl node undrain {node.node}",
        )
    elif listed.load is not None and listed.load.is_draining:
        yield Reason(
            what=node.node,
            problem=f"{node.role} on {node.host} is being stopped",
            since_s=None,
            meaning="it ends what it has and refuses anything new",
            next=look_at(node, is_local=is_local),
        )


def _of_reuse(nodes: Sequence[ListedNode]) -> Iterator[Reason]:
    namespaces: defaultdict[str, defaultdict[bytes, list[str]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for node in _alive(nodes):
        model = node.model
        if model is None:
            continue
        namespaces[model.name][model.namespace].append(node.node)
        if not model.is_reuse_safe:
            yield Reason(
                what=node.node,
                problem=f"does not reuse KV: {model.reuse_reason}",
                since_s=None,
                meaning="it computes every prompt whole, answers stay right",
                next=f"mcctl logs {node.role} there: its canary at the start says more",
            )
    for name, found in sorted(namespaces.items()):
        if len(found) > 1:
            groups = "; ".join(", ".join(sorted(group)) for group in found.values())
            yield Reason(
                what=name,
                problem=f"its instances are of {len(found)} kinds that share no KV: {groups}",
                since_s=None,
                meaning="a prompt that one kind has computed is computed again by another",
                next="give them the same weights, engine.dtype, block and chunk tokens; mcctl topology show",
            )


def _versions(listed: ListNodesReply) -> Iterator[Reason]:
    by_version: defaultdict[str, list[str]] = defaultdict(list)
    by_version[listed.master.software].append("the master")
    for node in _alive(listed.nodes):
        by_version[node.software].append(node.node)
    if len(by_version) > 1:
        groups = "; ".join(
            f"{version}: {', '.join(sorted(names)[:5])}"
            for version, names in sorted(by_version.items())
        )
        yield Reason(
            what="versions",
            problem=f"not all run the same software: {groups}",
            since_s=None,
            meaning="they understand each other, what is new in one of them may be missing",
            next="upgrade the rest, one node after the other: man mc-deploy",
        )


def _of_requests(requests: Sequence[ListedRequest]) -> Iterator[Reason]:
    recent = [request for request in requests if request.age_s < RECENT_S]
    for state, meaning in (
        ("failed", "their clients got an error"),
        ("rejected", "their clients got 429 or 503, with Retry-After"),
    ):
        found = [request for request in recent if request.state == state]
        if found:
            latest = min(found, key=lambda request: request.age_s)
            oldest_s = max(request.age_s for request in found)
            yield Reason(
                what="requests",
                problem=f"{len(found)} of the last {len(recent)} {state}; the latest, "
                f"{format_duration(latest.age_s)} ago: {latest.why}",
                since_s=oldest_s,
                meaning=meaning,
                next=f"mcctl request explain {latest.request_id}",
            )
