"""The Conductor's decision written plainly, one instance after the other: what the columns are compared with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from daemons.conductor.conductor import Conductor
from daemons.conductor.instance_table import InstanceDescription
from daemons.conductor.placement import Placement
from daemons.conductor.prefill_placement import Tuning
from daemons.conductor.view import InstanceView, PlacementRequest
from daemons.conductor.workload import Work
from daemons.protocol.node import InstanceLoad


@dataclass(frozen=True)
class Scene:
    """A cluster at `now_s`. `queue_s` of prefills is taken as it is; decodes have what `works` says."""

    instances: tuple[InstanceView, ...]
    works: tuple[Work, ...] = ()
    now_s: float = 0.0

    def conductor(self, tuning: Tuning) -> Conductor:
        made = Conductor(tuning)
        table = made._table
        for view in self.instances:
            described = InstanceDescription(
                node=view.node,
                role=view.role,
                host_id=view.host_id,
                model=view.model,
                namespace=view.namespace,
                capacity_tokens=view.capacity_tokens,
                is_reuse_safe=view.is_reuse_safe,
            )
            made.join(described, view.cost, view.state)
            made._workload.hear(
                view.node, InstanceLoad(num_running=view.num_requests), now_s=self.now_s
            )
            row = table.row_by_node[view.node]
            table.last_chosen[row] = view.last_chosen
            table.reported_queue_s[row] = view.queue_s if view.role == "prefill" else 0.0
        for work in self.works:
            made._workload.add(work)
        return made

    def place(self, request: PlacementRequest, tuning: Tuning) -> Placement:
        return self.conductor(tuning).place(request, now_s=self.now_s)


@dataclass
class PlainPlan:
    prefill: str
    decode: str
    matched: int
    ttft_s: float
    step_s: float


def plain_plan(scene: Scene, request: PlacementRequest, tuning: Tuning) -> PlainPlan | None:
    """None where the request is refused, for whatever reason."""
    usable = [
        i
        for i in scene.instances
        if i.model == request.model and i.state != "dead" and i.node not in request.exclude
    ]
    for states in (["alive"], ["alive", "suspect"]):
        pairs = []
        for namespace in sorted({i.namespace for i in usable}):
            same = [i for i in usable if i.namespace == namespace]
            if request.namespace not in (b"", namespace):
                continue
            prefills, decodes = (
                next(
                    (f for s in states if (f := [i for i in same if (i.role, i.state) == (r, s)])),
                    [],
                )
                for r in ("prefill", "decode")
            )
            if prefills and decodes:
                pairs.append((prefills, decodes))
        if pairs:
            break
    plans = [plan for p, d in pairs if (plan := _in_pair(scene, p, d, request, tuning))]
    chosen = {i.node: i.last_chosen for i in scene.instances}
    return min(plans, key=lambda p: (p.ttft_s, chosen[p.prefill], p.prefill), default=None)


def _in_pair(
    scene: Scene,
    prefills: Sequence[InstanceView],
    decodes: Sequence[InstanceView],
    request: PlacementRequest,
    tuning: Tuning,
) -> PlainPlan | None:
    prompt, needed = request.num_prompt_tokens, request.needed_tokens
    prefills = [p for p in prefills if p.capacity_tokens == 0 or prompt <= p.capacity_tokens]
    prefills = sorted(
        (p for p in prefills if p.queue_s <= tuning.max_queue_s), key=lambda p: p.node
    )
    decodes = sorted(
        (d for d in decodes if d.capacity_tokens == 0 or needed <= d.capacity_tokens),
        key=lambda d: d.node,
    )
    if not prefills or not decodes:
        return None
    mean_s = _mean_work_s(scene)
    ttft_s, prefill, matched = _prefill(prefills, request, tuning, mean_s)
    at_s = scene.now_s + ttft_s
    steps = {d.node: _step_s(scene, d, request, at_s) for d in decodes}
    waits = {d.node: _wait_s(scene, d, needed) for d in decodes}
    roomy = [d for d in decodes if waits[d.node] is None]
    if roomy:
        limit = min(steps[d.node] for d in roomy) * 1.02
        decode = min((d for d in roomy if steps[d.node] <= limit), key=lambda d: d.last_chosen)
    else:
        decode = min(decodes, key=lambda d: waits[d.node] or 0.0)
        if (waits[decode.node] or 0.0) > tuning.max_queue_s:
            return None
    if not decode.is_reuse_safe:
        without = replace(request, matched_tokens=0)
        ttft_s, prefill, matched = _prefill(prefills, without, tuning, mean_s)
    return PlainPlan(prefill.node, decode.node, matched, ttft_s, steps[decode.node])


def _prefill(
    prefills: Sequence[InstanceView], request: PlacementRequest, tuning: Tuning, mean_s: float
) -> tuple[float, InstanceView, int]:
    mean_queue_s = sum(p.queue_s for p in prefills) / len(prefills)
    num_behind = mean_queue_s / mean_s if mean_s else 0.0

    def device(p: InstanceView) -> int:
        return request.device_tokens.get(p.node, 0) if p.is_reuse_safe else 0

    def local(p: InstanceView) -> int:
        in_pool = min(request.matched_tokens, request.local_tokens.get(p.host_id, 0))
        return max(in_pool if p.is_reuse_safe else 0, device(p))

    def most(p: InstanceView) -> int:
        return max(request.matched_tokens if p.is_reuse_safe else 0, device(p))

    def total_s(p: InstanceView, matched: int) -> float:
        here, held = min(matched, local(p)), min(matched, device(p))
        load_s = p.cost.load_s(here - held, matched - here)
        return p.queue_s + max(load_s, p.cost.prefill_s(request.num_prompt_tokens, matched))

    def cost_s(p: InstanceView) -> float:
        total = total_s(p, fastest(p))
        return total + num_behind * (total - p.queue_s)

    def fastest(p: InstanceView) -> int:
        choices = (most(p) if tuning.may_pull else local(p), local(p), device(p), 0)
        return min(choices, key=lambda matched: total_s(p, matched))

    def fetched(p: InstanceView) -> int:
        is_much = request.matched_tokens > tuning.balancing_threshold * local(p)
        return most(p) if tuning.may_pull and is_much else local(p)

    def waiting(p: InstanceView) -> float:
        return p.queue_s / max(p.cost.token_s, 1e-9) - local(p)

    reuse: Callable[[InstanceView], int] = {
        "cache-aware": local,
        "kvcache-centric": fetched,
        "lmetric": local,
        "dynamo": local,
    }.get(tuning.policy, fastest)
    value: Callable[[InstanceView], float] = {
        "least-loaded": lambda p: p.queue_s,
        "lmetric": lambda p: float(
            max(1, request.num_prompt_tokens - local(p)) * (p.num_requests + 1)
        ),
        "dynamo": lambda p: waiting(p) - min(waiting(q) for q in prefills),
        "time": cost_s,
    }.get(tuning.policy, lambda p: total_s(p, reuse(p)))
    if tuning.policy == "random":
        chosen = Random(f"{tuning.seed}:{request.request_id}").choice(prefills)
    else:
        best = min(value(p) for p in prefills)
        limit = best + max(0.001, 0.02 * best)
        chosen = min((p for p in prefills if value(p) <= limit), key=lambda p: p.last_chosen)
    return total_s(chosen, reuse(chosen)), chosen, reuse(chosen)


def _mean_work_s(scene: Scene) -> float:
    mean_s = 0.0
    for work in scene.works:
        mean_s = 0.98 * mean_s + 0.02 * work.prefill_s if mean_s else work.prefill_s
    return mean_s


def _step_s(scene: Scene, d: InstanceView, request: PlacementRequest, at_s: float) -> float:
    works = [w for w in scene.works if w.decode == d.node]
    left = [w for w in works if w.started_s + w.prefill_s + w.decode_s > at_s]
    others = max(len(works), d.num_requests) - (len(works) - len(left))
    context = sum(w.context_tokens for w in left) + request.context_tokens
    return d.cost.decode_step_s(others, context)


def _wait_s(scene: Scene, d: InstanceView, needed: int) -> float | None:
    """None where there is room now."""
    works = [w for w in scene.works if w.decode == d.node]
    left = sum(w.num_tokens for w in works) + needed
    if d.capacity_tokens == 0 or left <= d.capacity_tokens:
        return None
    for end_s, num_tokens in sorted(
        (w.started_s + w.prefill_s + w.decode_s, w.num_tokens) for w in works
    ):
        left -= num_tokens
        if left <= d.capacity_tokens:
            return max(0.0, end_s - scene.now_s)
    return 0.0
