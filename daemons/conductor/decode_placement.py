"""Which instance decodes: the least predicted time between tokens once the request is in its batch, KV permitting.

The batch is that of the moment when the request arrives there, its prefill done: who is predicted to have ended by
then is not counted. Instances with room for it now come before those that would wait for it.
"""

from dataclasses import dataclass

import numpy as np

from daemons.conductor.columns import Floats, Ints, Rows
from daemons.conductor.instance_table import InstanceTable
from daemons.conductor.view import PlacementRequest
from daemons.conductor.workload import Workload

TIE_FRACTION = 0.02


@dataclass(frozen=True, slots=True)
class DecodeCandidates:
    """Who could ever hold it. `roomy`: positions of those with room beside all that was promised before."""

    rows: Rows
    roomy: Rows


@dataclass(frozen=True, slots=True)
class DecodeChoice:
    """`chosen` is a position among `rows`; `step_s` of each: predicted time between tokens after insertion beside
    `num_others`.
    """

    chosen: int
    rows: Rows
    step_s: Floats
    num_others: Ints
    queue_s: float
    """Until the chosen one has room."""


def decode_candidates(
    table: InstanceTable, rows: Rows, request: PlacementRequest
) -> DecodeCandidates:
    capacity = table.capacity_tokens[rows]
    needed = request.needed_tokens
    can_hold = (capacity == 0) | (needed <= capacity)
    if not can_hold.all():
        rows, capacity = rows[can_hold], capacity[can_hold]
    has_room = (capacity == 0) | (table.reserved_tokens[rows] + needed <= capacity)
    return DecodeCandidates(rows, np.flatnonzero(has_room))


def shortest_wait(
    table: InstanceTable,
    workload: Workload,
    rows: Rows,
    request: PlacementRequest,
    *,
    now_s: float,
) -> tuple[int, float]:
    """(position, seconds) of the one of these full instances that has room first; equal ones in their order.

    None has it before its first request ends, so few need to be looked at closely.
    """
    bounds = np.maximum(0.0, table.decode_slots.first_end_s[rows] - now_s)
    best, best_s = 0, np.inf
    for position in np.argsort(bounds, kind="stable").tolist():
        if bounds[position] > best_s:
            break
        described = table.described(rows[position])
        wait_s = workload.decode_wait_s(
            described.node, described.capacity_tokens, request.needed_tokens, now_s=now_s
        )
        if wait_s < best_s or (wait_s == best_s and position < best):
            best, best_s = position, wait_s
    return best, float(best_s)


def choose_decode(
    table: InstanceTable,
    candidates: DecodeCandidates,
    request: PlacementRequest,
    *,
    wait: tuple[int, float] | None,
    at_s: float,
) -> DecodeChoice:
    """`wait`: of `shortest_wait`, where nobody is roomy. `at_s`: when its KV will be there."""
    rows = candidates.rows
    step_s, num_others = predicted_step_s(table, rows, request, at_s=at_s)
    if wait is not None:
        return DecodeChoice(wait[0], rows, step_s, num_others, wait[1])
    roomy = candidates.roomy
    steps = step_s[roomy]
    equal = roomy[steps <= steps.min() * (1 + TIE_FRACTION)]
    chosen = int(equal[np.argmin(table.last_chosen[rows[equal]])])
    return DecodeChoice(chosen, rows, step_s, num_others, 0.0)


def predicted_step_s(
    table: InstanceTable, rows: Rows, request: PlacementRequest, *, at_s: float
) -> tuple[Floats, Ints]:
    """Of each, with this request beside those that are still there at that time; and how many those are."""
    context = table.decode_slots.all_context_tokens[rows] + request.context_tokens
    num_others: Ints = np.maximum(table.num_promised[rows], table.num_reported[rows])
    at = np.flatnonzero(table.decode_slots.first_end_s[rows] <= at_s)
    if len(at):  # some of theirs will have ended; empty slots never do, and hold nothing
        looked_into = rows[at]
        has_ended = table.decode_slots.ends_s.take(looked_into, axis=0) <= at_s
        tokens = table.decode_slots.context_tokens.take(looked_into, axis=0)
        context[at] -= np.einsum("ij,ij->i", tokens, has_ended)
        num_others[at] = np.maximum(0, num_others[at] - np.count_nonzero(has_ended, axis=1))
    return table.costs(rows).decode_step_s(num_others, context), num_others


def pool_load(
    table: InstanceTable, rows: Rows, tbt_slo_s: float, *, at_s: float, decode_s: float = np.inf
) -> float:
    """Mean of these instances' time between tokens at that time, as a share of the objective; of an empty one 0.

    Only those count whose prefill is over by then. `decode_s`: how long each is taken to decode; without one, all that
    are not known to have ended count: of now that is so, however early they were predicted to end.
    """
    begins_s = table.decode_slots.begins_s[rows]
    is_there = (begins_s <= at_s) & (at_s < begins_s + decode_s)
    count = is_there.sum(axis=1)
    context = np.where(is_there, table.decode_slots.context_tokens[rows], 0).sum(axis=1)
    step_s = table.costs(rows).decode_step_s(np.maximum(0, count - 1), context)
    return float(np.where(count > 0, step_s, 0.0).mean() / tbt_slo_s)
