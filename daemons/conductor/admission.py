"""Who may serve a request: those that can hold it and whose queue is short enough; nobody: it is turned away."""

import numpy as np

from daemons.conductor.columns import Floats, Rows
from daemons.conductor.decode_placement import DecodeCandidates, decode_candidates, shortest_wait
from daemons.conductor.early_rejection import Overload
from daemons.conductor.instance_table import InstanceTable
from daemons.conductor.view import PlacementRequest
from daemons.conductor.workload import Workload
from daemons.core.errors import Rejected


def admit_prefill(
    table: InstanceTable, rows: Rows, request: PlacementRequest, max_queue_s: float, now_s: float
) -> tuple[Rows, Floats]:
    """Those that can hold the prompt and whose queue is short enough, and their queues. Raises Rejected."""
    num_tokens = request.num_prompt_tokens
    capacity = table.capacity_tokens[rows]
    can_hold = (capacity == 0) | (num_tokens <= capacity)
    if not can_hold.all():
        rows = rows[can_hold]
    if not len(rows):
        raise Rejected(
            f"the prompt has {num_tokens} tokens, the largest prefill node holds {capacity.max()}; shorten it"
        )
    queue_s = prefill_queue_s(table, rows, now_s)
    is_short = queue_s <= max_queue_s
    if not is_short.any():
        raise _too_long("prefill", float(queue_s.min()), max_queue_s)
    return (rows, queue_s) if is_short.all() else (rows[is_short], queue_s[is_short])


def prefill_queue_s(table: InstanceTable, rows: Rows, now_s: float) -> Floats:
    """The longer of what we promised and what it reports as waiting."""
    promised_s = np.maximum(0.0, table.busy_until_s[rows] - now_s)
    queue_s: Floats = np.maximum(promised_s, table.reported_queue_s[rows])
    return queue_s


def admit_decode(
    table: InstanceTable,
    workload: Workload,
    rows: Rows,
    request: PlacementRequest,
    *,
    max_queue_s: float,
    now_s: float,
) -> tuple[DecodeCandidates, tuple[int, float] | None]:
    """Those with room for its KV now; where there is none, the one that has it soonest. Raises Rejected."""
    candidates = decode_candidates(table, rows, request)
    if not len(candidates.rows):
        largest = table.capacity_tokens[rows].max()
        raise Rejected(
            f"the request needs {request.needed_tokens} tokens of KV (prompt + max_tokens), the largest decode node "
            f"holds {largest}; lower max_tokens"
        )
    if len(candidates.roomy):
        return candidates, None
    wait = shortest_wait(table, workload, candidates.rows, request, now_s=now_s)
    if wait[1] > max_queue_s:
        raise _too_long("decode", wait[1], max_queue_s)
    return candidates, wait


def _too_long(stage: str, shortest_s: float, max_queue_s: float) -> Overload:
    return Overload(
        f"every {stage} queue is longer than {max_queue_s:g} s (shortest: {shortest_s:.1f} s)",
        limit=f"{stage}_queue",
        retry_after_s=shortest_s - max_queue_s,
    )
