"""Which instance prefills: policies as pure functions of (instances, request, tuning), in a table by config name.

Every policy weighs all instances it is given and says what it saw; the caller has left out those that may not serve.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from daemons.conductor.view import InstanceView, Option, PlacementRequest

_LEAST_TOKEN_S = 1e-9
"""For a model that has measured nothing yet: below any real one."""
TIE_S = 0.001
TIE_FRACTION = 0.02
"""Predictions this close are equal; the least recently chosen instance then wins, so idle ones take turns."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the operator set under [conductor]."""

    policy: str = "time"
    seed: int = 0
    balancing_threshold: float = 1.5
    max_queue_s: float = 60.0
    ttft_slo_s: float = 0.0
    """Whoever is predicted to wait longer for the first token is rejected; 0: nobody."""
    may_pull: bool = True
    """Whether a prefill may reuse what only other hosts hold."""


@dataclass(frozen=True, slots=True)
class PrefillChoice:
    chosen: Option
    options: tuple[Option, ...]


PrefillPolicy = Callable[[Sequence[InstanceView], PlacementRequest, Tuning], PrefillChoice]


def fastest_reuse(instance: InstanceView, request: PlacementRequest, tuning: Tuning) -> Option:
    """The least predicted time here over: reuse all that matched, only what this host holds, or nothing."""
    local = local_tokens(instance, request)
    most = usable_tokens(instance, request) if tuning.may_pull else local
    return min(
        (option_with(instance, request, matched) for matched in dict.fromkeys((most, local, 0))),
        key=lambda option: option.total_s,
    )


def option_with(instance: InstanceView, request: PlacementRequest, matched: int) -> Option:
    """Time to the first token with so many tokens reused."""
    local = min(matched, local_tokens(instance, request))
    return Option(
        node=instance.node,
        queue_s=instance.queue_s,
        load_s=instance.cost.load_s(local, matched - local),
        prefill_s=instance.cost.prefill_s(request.num_prompt_tokens, matched),
        matched_tokens=matched,
    )


def usable_tokens(instance: InstanceView, request: PlacementRequest) -> int:
    return request.matched_tokens if instance.is_reuse_safe else 0


def local_tokens(instance: InstanceView, request: PlacementRequest) -> int:
    if not instance.is_reuse_safe:
        return 0
    return min(request.matched_tokens, request.local_tokens.get(instance.host_id, 0))


def by_random(
    instances: Sequence[InstanceView], request: PlacementRequest, tuning: Tuning
) -> PrefillChoice:
    """Baseline. The draw depends on the seed and the request's id only."""
    options = _options(instances, request, tuning)
    return PrefillChoice(Random(f"{tuning.seed}:{request.request_id}").choice(options), options)


def by_least_load(
    instances: Sequence[InstanceView], request: PlacementRequest, tuning: Tuning
) -> PrefillChoice:
    """Baseline: the shortest queue, whatever is cached where."""
    options = _options(instances, request, tuning)
    return PrefillChoice(_least(instances, options, lambda o: o.queue_s), options)


def by_local_cache(
    instances: Sequence[InstanceView], request: PlacementRequest, _: Tuning
) -> PrefillChoice:
    """Baseline of the FAST'25 paper, "local cache aware": queue + prefill, reusing only what its host holds."""
    options = tuple(option_with(i, request, local_tokens(i, request)) for i in instances)
    return PrefillChoice(_least(instances, options, lambda o: o.total_s), options)


def by_kvcache(
    instances: Sequence[InstanceView], request: PlacementRequest, tuning: Tuning
) -> PrefillChoice:
    """Algorithm 1 of the FAST'25 paper: fetch the best prefix where the local one is much shorter, else use the local.

    "Much" is the ratio `balancing_threshold`; no local prefix at all counts as an infinite ratio.
    """
    best = (
        request.matched_tokens
    )  # the pool is the cluster's, so its longest match is the best anywhere
    options = []
    for instance in instances:
        local = local_tokens(instance, request)
        is_much_shorter = tuning.may_pull and best > tuning.balancing_threshold * local
        fetched = min(best, usable_tokens(instance, request)) if is_much_shorter else local
        options.append(option_with(instance, request, fetched))
    return PrefillChoice(_least(instances, options, lambda o: o.total_s), tuple(options))


def by_lmetric(
    instances: Sequence[InstanceView], request: PlacementRequest, _: Tuning
) -> PrefillChoice:
    """LMetric (arXiv 2603.15202): new prompt tokens times requests it would then have; local reuse, nothing to tune."""
    options = tuple(option_with(i, request, local_tokens(i, request)) for i in instances)
    num_requests = {instance.node: instance.num_requests + 1 for instance in instances}

    def metric(option: Option) -> float:
        new = max(1, request.num_prompt_tokens - option.matched_tokens)
        return float(new * num_requests[option.node])

    return PrefillChoice(_least(instances, options, metric), options)


def by_dynamo(
    instances: Sequence[InstanceView], request: PlacementRequest, _: Tuning
) -> PrefillChoice:
    """The linear cost of NVIDIA Dynamo's router: tokens that wait there + new ones of this prompt; local reuse.

    What waits is known here in time, so it is turned into tokens by what one costs.
    """
    options = tuple(option_with(i, request, local_tokens(i, request)) for i in instances)
    token_s = {instance.node: instance.cost.token_s for instance in instances}

    def tokens(option: Option) -> float:
        return option.queue_s / max(token_s[option.node], _LEAST_TOKEN_S) - option.matched_tokens

    least = min(tokens(option) for option in options)
    return PrefillChoice(_least(instances, options, lambda o: tokens(o) - least), options)


def by_time(
    instances: Sequence[InstanceView], request: PlacementRequest, tuning: Tuning
) -> PrefillChoice:
    """Ours: the least predicted time to first token, each instance at its own best way to get the prefix."""
    options = _options(instances, request, tuning)
    return PrefillChoice(_least(instances, options, lambda o: o.total_s), options)


POLICIES: dict[str, PrefillPolicy] = {
    "random": by_random,
    "least-loaded": by_least_load,
    "cache-aware": by_local_cache,
    "kvcache-centric": by_kvcache,
    "lmetric": by_lmetric,
    "dynamo": by_dynamo,
    "time": by_time,
}


def _options(
    instances: Sequence[InstanceView], request: PlacementRequest, tuning: Tuning
) -> tuple[Option, ...]:
    return tuple(fastest_reuse(instance, request, tuning) for instance in instances)


def _least(
    instances: Sequence[InstanceView],
    options: Sequence[Option],
    value: Callable[[Option], float],
) -> Option:
    """Among the near-equal best, the least recently chosen; then the first by name."""
    best = min(value(option) for option in options)
    limit = best + max(TIE_S, TIE_FRACTION * best)
    equal = [
        (instance, option)
        for instance, option in zip(instances, options, strict=True)
        if value(option) <= limit
    ]
    return min(equal, key=lambda entry: (entry[0].last_chosen, entry[0].node))[1]
