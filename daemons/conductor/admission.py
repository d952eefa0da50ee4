"""Who is turned away, up front: a request that would wait too long everywhere, or that no node can hold."""

from collections.abc import Sequence

from daemons.conductor.decode_placement import can_ever_hold, has_headroom
from daemons.conductor.view import InstanceView, PlacementRequest
from daemons.core.errors import Rejected

MAX_RETRY_AFTER_S = 30.0


def admit_prefill(
    instances: Sequence[InstanceView], request: PlacementRequest, max_queue_s: float
) -> list[InstanceView]:
    """Those that can hold the prompt and whose queue is short enough. Raises Rejected when there is none."""
    num_tokens = request.num_prompt_tokens
    holding = [i for i in instances if i.capacity_tokens == 0 or num_tokens <= i.capacity_tokens]
    if not holding:
        largest = max(instance.capacity_tokens for instance in instances)
        raise Rejected(
            f"the prompt has {num_tokens} tokens, the largest prefill node holds {largest}; shorten it"
        )
    admitted = [instance for instance in holding if instance.queue_s <= max_queue_s]
    if not admitted:
        raise _too_long("prefill", min(i.queue_s for i in holding), max_queue_s)
    return admitted


def admit_first_token(predicted_s: float, slo_s: float) -> None:
    """Early rejection: nothing is computed for a request that is predicted to miss its objective; 0 is none."""
    if 0 < slo_s < predicted_s:
        wait_s = min(MAX_RETRY_AFTER_S, max(1.0, predicted_s - slo_s))
        raise Rejected(
            f"the first token is predicted after {predicted_s:.1f} s, the objective is {slo_s:g} s; try again later",
            retry_after_ms=int(wait_s * 1000),
        )


def admit_decode(
    instances: Sequence[InstanceView], request: PlacementRequest, max_queue_s: float
) -> list[InstanceView]:
    """Those with room for its KV now, or soon enough. Raises Rejected when there is none."""
    holding = [instance for instance in instances if can_ever_hold(instance, request)]
    if not holding:
        largest = max(instance.capacity_tokens for instance in instances)
        raise Rejected(
            f"the request needs {request.needed_tokens} tokens of KV (prompt + max_tokens), the largest decode node "
            f"holds {largest}; lower max_tokens"
        )
    admitted = [
        instance
        for instance in holding
        if has_headroom(instance, request) or instance.queue_s <= max_queue_s
    ]
    if not admitted:
        raise _too_long("decode", min(i.queue_s for i in holding), max_queue_s)
    return admitted


def _too_long(stage: str, shortest_s: float, max_queue_s: float) -> Rejected:
    wait_s = min(MAX_RETRY_AFTER_S, max(1.0, shortest_s - max_queue_s))
    return Rejected(
        f"every {stage} queue is longer than {max_queue_s:g} s (shortest: {shortest_s:.1f} s); try again later",
        retry_after_ms=int(wait_s * 1000),
    )
