"""Which instances may serve a request at all, in pairs of prefill and decode; where there are none, why."""

from typing import Final

import numpy as np

from daemons.conductor.columns import Rows
from daemons.conductor.instance_table import InstanceTable
from daemons.conductor.view import InstanceRole, PlacementRequest
from daemons.core.errors import NotFound, Unavailable
from daemons.protocol.node import NodeState

_RETRY_AFTER_MS: Final = 500
_ROLES: Final[tuple[InstanceRole, ...]] = ("prefill", "decode")
_STATES: Final[tuple[NodeState, ...]] = ("alive", "suspect")


def eligible_pairs(table: InstanceTable, request: PlacementRequest) -> list[tuple[Rows, Rows]]:
    """(prefills, decodes) of each namespace; only pairs of healthy ones when there is any."""
    for states in (_STATES[:1], _STATES):
        pairs = []
        for namespace in _asked_namespaces(table, request):
            prefills = _best_state(table, request, namespace, "prefill", states)
            decodes = _best_state(table, request, namespace, "decode", states)
            if len(prefills) and len(decodes):
                pairs.append((prefills, decodes))
        if pairs:
            return pairs
    return []


def unknown_model(table: InstanceTable, model: str) -> NotFound | Unavailable:
    known = table.models()
    if not known:
        return Unavailable(
            "no prefill or decode node has joined yet", retry_after_ms=_RETRY_AFTER_MS
        )
    return NotFound(f"model {model!r} is not served here; known: {', '.join(known)}")


def nobody_serves(table: InstanceTable, request: PlacementRequest) -> Unavailable:
    model = request.model
    roles = {
        role
        for namespace in _asked_namespaces(table, request)
        for role in _ROLES
        for state in _STATES
        if len(_usable(table, request, namespace, role, state))
    }
    missing = " and no ".join(role for role in _ROLES if role not in roles)
    why = (
        f"no {missing} node is up for {model!r}"
        if missing
        else f"the prefill and decode nodes of {model!r} do not share a namespace (dtype, block, chunk, threads)"
    )
    others = set(table.namespaces(model)) - {request.namespace}
    if request.namespace and others:
        why += (
            f" in namespace {request.namespace.hex()[:8]}, that of the request; instances of "
            f"{len(others)} other(s) are up: ask again, gateways go where both roles are"
        )
    return Unavailable(why, retry_after_ms=_RETRY_AFTER_MS)


def _asked_namespaces(table: InstanceTable, request: PlacementRequest) -> list[bytes]:
    serving = table.namespaces(request.model)
    return [name for name in serving if request.namespace in (b"", name)]


def _best_state(
    table: InstanceTable,
    request: PlacementRequest,
    namespace: bytes,
    role: InstanceRole,
    states: tuple[NodeState, ...],
) -> Rows:
    """Of this role in the first of these states that anyone is in."""
    for state in states:
        rows = _usable(table, request, namespace, role, state)
        if len(rows):
            break
    return rows


def _usable(
    table: InstanceTable,
    request: PlacementRequest,
    namespace: bytes,
    role: InstanceRole,
    state: NodeState,
) -> Rows:
    rows = table.rows(request.model, namespace, role, state)
    excluded = [table.row_by_node[node] for node in request.exclude if node in table.row_by_node]
    return rows[~np.isin(rows, excluded)] if excluded else rows
