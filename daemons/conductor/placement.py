"""The whole decision: prefill and decode together, of one model and one namespace. Same inputs, same plan."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from daemons.conductor.admission import admit_decode, admit_first_token, admit_prefill
from daemons.conductor.decode_placement import choose_decode
from daemons.conductor.prefill_placement import POLICIES, Tuning
from daemons.conductor.view import ClusterView, InstanceRole, InstanceView, Option, PlacementRequest
from daemons.core.errors import NotFound, Rejected, Unavailable

RETRY_AFTER_MS = 500


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision and what it was made from; `matched_tokens` is how much of the match to reuse."""

    prefill: InstanceView
    decode: InstanceView
    matched_tokens: int
    prefill_work_s: float
    """What the prefill instance will be busy for: load and prefill, which overlap."""
    step_s: float
    predicted_ttft_s: float
    policy: str
    prefill_options: tuple[Option, ...]
    decode_options: tuple[Option, ...]


def place(view: ClusterView, request: PlacementRequest, tuning: Tuning) -> Placement:
    """Raises NotFound (no such model), Unavailable (nobody alive), Rejected (admission).

    Where several namespaces serve the model, the best plan of any of them; suspect nodes only when nothing else.
    """
    serving = [instance for instance in view.instances if instance.model == request.model]
    if not serving:
        raise _unknown_model(view, request.model)
    usable = [
        instance
        for instance in serving
        if instance.state != "dead"
        and instance.node not in request.exclude
        and request.namespace in (b"", instance.namespace)
    ]
    pairs = _pairs(usable)
    if not pairs:
        raise _nobody(serving, usable, request)
    placements, refusal = [], None
    for prefills, decodes in pairs:
        try:
            placements.append(_place_in(prefills, decodes, request, tuning))
        except Rejected as error:
            refusal = error
    if not placements:
        assert refusal is not None, "no plan and no reason"
        raise refusal
    return min(
        placements, key=lambda p: (p.predicted_ttft_s, p.prefill.last_chosen, p.prefill.node)
    )


def _place_in(
    prefills: list[InstanceView],
    decodes: list[InstanceView],
    request: PlacementRequest,
    tuning: Tuning,
) -> Placement:
    prefills = admit_prefill(prefills, request, tuning.max_queue_s)
    decode = choose_decode(admit_decode(decodes, request, tuning.max_queue_s), request)
    if not decode.node.is_reuse_safe:
        request = replace(request, matched_tokens=0)
    choice = POLICIES[tuning.policy](prefills, request, tuning)
    chosen = choice.chosen
    admit_first_token(chosen.total_s, tuning.ttft_slo_s)
    instance = next(i for i in prefills if i.node == chosen.node)
    return Placement(
        prefill=instance,
        decode=decode.node,
        matched_tokens=chosen.matched_tokens,
        prefill_work_s=chosen.work_s,
        step_s=decode.step_s,
        predicted_ttft_s=chosen.total_s,
        policy=tuning.policy,
        prefill_options=choice.options,
        decode_options=decode.options,
    )


def _pairs(usable: list[InstanceView]) -> list[tuple[list[InstanceView], list[InstanceView]]]:
    """(prefills, decodes) of each namespace; only pairs of healthy ones when there is any."""
    for states in (("alive",), ("alive", "suspect")):
        pairs = []
        for namespace in sorted({i.namespace for i in usable}):
            same = [i for i in usable if i.namespace == namespace]
            prefills = _best_state(same, "prefill", states)
            decodes = _best_state(same, "decode", states)
            if prefills and decodes:
                pairs.append((prefills, decodes))
        if pairs:
            return pairs
    return []


def _best_state(
    instances: Iterable[InstanceView], role: InstanceRole, states: tuple[str, ...]
) -> list[InstanceView]:
    """Of this role in the first of these states that anyone is in."""
    ours = [instance for instance in instances if instance.role == role]
    for state in states:
        found = [instance for instance in ours if instance.state == state]
        if found:
            return found
    return []


def _unknown_model(view: ClusterView, model: str) -> NotFound | Unavailable:
    known = sorted({instance.model for instance in view.instances})
    if not known:
        return Unavailable(
            "no prefill or decode node has joined yet", retry_after_ms=RETRY_AFTER_MS
        )
    return NotFound(f"model {model!r} is not served here; known: {', '.join(known)}")


def _nobody(
    serving: list[InstanceView], usable: list[InstanceView], request: PlacementRequest
) -> Unavailable:
    model = request.model
    roles = {instance.role for instance in usable}
    missing = " and no ".join(role for role in ("prefill", "decode") if role not in roles)
    why = (
        f"no {missing} node is up for {model!r}"
        if missing
        else f"the prefill and decode nodes of {model!r} do not share a namespace (dtype, block, chunk, threads)"
    )
    others = {i.namespace for i in serving if i.state != "dead"} - {request.namespace}
    if request.namespace and others:
        why += (
            f" in namespace {request.namespace.hex()[:8]}, that of the request; instances of "
            f"{len(others)} other(s) are up: ask again, gateways go where both roles are"
        )
    return Unavailable(why, retry_after_ms=RETRY_AFTER_MS)
