"""Which instance decodes: the least predicted time between tokens once the request is in its batch, KV permitting."""

from collections.abc import Sequence
from dataclasses import dataclass

from daemons.conductor.view import InstanceView, Option, PlacementRequest

TIE_FRACTION = 0.02


@dataclass(frozen=True, slots=True)
class DecodeChoice:
    """`step_s`: predicted time between tokens after insertion."""

    node: InstanceView
    step_s: float
    options: tuple[Option, ...]


def can_ever_hold(instance: InstanceView, request: PlacementRequest) -> bool:
    return instance.capacity_tokens == 0 or request.needed_tokens <= instance.capacity_tokens


def has_headroom(instance: InstanceView, request: PlacementRequest) -> bool:
    """Room for the whole request beside all that was promised before."""
    return (
        instance.capacity_tokens == 0
        or instance.reserved_tokens + request.needed_tokens <= instance.capacity_tokens
    )


def choose_decode(instances: Sequence[InstanceView], request: PlacementRequest) -> DecodeChoice:
    """`instances` is not empty and each may serve. Those with room now come before those that would wait for it."""
    steps = [
        (instance, instance.cost.step_with(instance.num_requests + 1)) for instance in instances
    ]
    options = tuple(
        Option(instance.node, instance.queue_s, 0.0, step_s, 0) for instance, step_s in steps
    )
    roomy = [step for step in steps if has_headroom(step[0], request)]
    if roomy:
        limit = min(step_s for _, step_s in roomy) * (1 + TIE_FRACTION)
        chosen, step_s = min(
            (step for step in roomy if step[1] <= limit),
            key=lambda step: (step[0].last_chosen, step[0].node),
        )
    else:
        chosen, step_s = min(steps, key=lambda step: (step[0].queue_s, step[1], step[0].node))
    return DecodeChoice(chosen, step_s, options)
