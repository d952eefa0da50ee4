"""Early rejection: who is turned away before anything is computed, because it is predicted to miss an objective.

Modes as pure functions in a table by config name. In all of them a request that would find an idle instance is never
refused, however long it takes: refused, it never would be served, and nobody waits for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from daemons.conductor.view import Option, PlacementRequest
from daemons.core.errors import Rejected

MAX_RETRY_AFTER_S: Final = 30.0
IDLE_FRACTION: Final = 0.1
"""Of the TTFT objective: an instance whose queue is shorter counts as idle."""
_LEAST_SHED_FROM: Final = 0.4
"""However low a priority is, and however much its tenant has had, it is served while the cluster is less loaded."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What was predicted for a request where it would have gone, and the instances that it was weighed for."""

    ttft_s: float
    tbt_s: float
    options: tuple[Option, ...]


class Overload(Rejected):
    """`limit`: which objective, or which queue. `weighed` is set where it came to a choice of instances."""

    def __init__(self, message: str, *, limit: str, retry_after_s: float) -> None:
        wait_s = min(MAX_RETRY_AFTER_S, max(1.0, retry_after_s))
        super().__init__(f"{message}; try again later", retry_after_ms=int(wait_s * 1000))
        self.limit = limit
        self.weighed: Weighed | None = None


@dataclass(frozen=True, slots=True)
class Objectives:
    """Seconds; 0: none. `shed_from`: share of one that requests of priority 0 may use up."""

    ttft_s: float = 0.0
    tbt_s: float = 0.0
    shed_from: float = 0.85


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is predicted for a request where it would be placed. Loads are of the whole decode pool, 1 at the objective:
    now, and when the request arrives there.
    """

    ttft_s: float
    shortest_queue_s: float
    """Of the prefill instances that could take it."""
    tbt_s: float
    num_others: int
    """In the decode batch that it would join, when it does."""
    decode_load_now: Callable[[], float]
    decode_load_then: Callable[[], float]
    mean_decode_s: float
    tenant_share: Callable[[], float]
    """As a multiple of an equal one."""
    relative_size: float = 1.0
    """Tokens of this request, as a multiple of what they mostly are."""

    def is_waiting(self, objectives: Objectives) -> bool:
        return self.shortest_queue_s > IDLE_FRACTION * objectives.ttft_s


Mode = Callable[[Prospect, PlacementRequest, Objectives, int], None]
"""Raises Overload. The number is a seed: with the request's id it makes the draw."""


def never(_: Prospect, __: PlacementRequest, ___: Objectives, ____: int) -> None:
    """Nobody is refused for an objective."""


def on_current_load(
    prospect: Prospect, _: PlacementRequest, objectives: Objectives, __: int
) -> None:
    """The Mooncake paper's early rejection (arXiv 2407.00079, section 7.2): the decode pool as it is now."""
    _refuse_late(prospect, objectives)
    if objectives.tbt_s:
        _refuse_load(prospect, prospect.decode_load_now(), "now")


def on_predicted_load(
    prospect: Prospect, _: PlacementRequest, objectives: Objectives, __: int
) -> None:
    """The paper's early rejection based on prediction (section 7.4): the decode pool when the prefill will be done."""
    _refuse_late(prospect, objectives)
    if objectives.tbt_s:
        _refuse_load(prospect, prospect.decode_load_then(), "when it gets there")


def on_objectives(
    prospect: Prospect, request: PlacementRequest, objectives: Objectives, seed: int
) -> None:
    """Ours: both predictions of this very request, each for the time when it reaches the stage.

    The TTFT of a queue is predicted well, so its limit is a line: below the objective, and the lower, the lower the
    priority is and the more its tenant has had lately. The TBT depends on who comes later: near its objective ever more
    requests are shed, large ones first, so that load settles below it instead of swinging around it.
    """
    late = prospect.ttft_s / objectives.ttft_s if objectives.ttft_s else 0.0
    slow = prospect.tbt_s / objectives.tbt_s if objectives.tbt_s else 0.0
    if not prospect.num_others:
        slow = 0.0
    share = prospect.tenant_share() if max(late, slow) > _LEAST_SHED_FROM else 0.0
    limit = shed_from(request.priority, share, objectives)
    if late > limit and prospect.is_waiting(objectives):
        raise _late(prospect, objectives, limit * objectives.ttft_s)
    start = shed_from(request.priority, 1.0, objectives)
    if slow <= start:
        return
    pressure = (slow - start) / (1 - start) if start < 1 else 1.0
    draw = Random(f"shed:{seed}:{request.request_id}").random()
    if slow > 1 or draw < pressure * share * prospect.relative_size:
        raise Overload(
            f"the time between tokens is predicted as {prospect.tbt_s * 1000:.0f} ms, the objective is "
            f"{objectives.tbt_s * 1000:g} ms, and requests of priority {request.priority} are shed from {start:.0%} of "
            "it on",
            limit="tbt",
            # Spread, so that those who were refused together do not come back together.
            retry_after_s=(0.5 + draw) * prospect.mean_decode_s * (1 - start / slow),
        )


MODES: dict[str, Mode] = {
    "none": never,
    "current-load": on_current_load,
    "predicted-load": on_predicted_load,
    "objectives": on_objectives,
}


def shed_from(priority: int, share: float, objectives: Objectives) -> float:
    """The part of an objective that may be used up. Each step of priority halves or doubles what stays free for those
    above, and so does each doubling of the tenant's share.
    """
    start: float = 1 - (1 - objectives.shed_from) * 0.5**priority * share
    return max(_LEAST_SHED_FROM, start)


def _refuse_late(prospect: Prospect, objectives: Objectives) -> None:
    if 0 < objectives.ttft_s < prospect.ttft_s and prospect.is_waiting(objectives):
        raise _late(prospect, objectives, objectives.ttft_s)


def _refuse_load(prospect: Prospect, load: float, when: str) -> None:
    if load > 1:
        raise Overload(
            f"the decode nodes are at {load:.0%} of their time between tokens {when}",
            limit="tbt",
            retry_after_s=prospect.mean_decode_s * (1 - 1 / load),
        )


def _late(prospect: Prospect, objectives: Objectives, limit_s: float) -> Overload:
    kept = f", of which {limit_s:.1f} s may be used" if limit_s < objectives.ttft_s else ""
    return Overload(
        f"the first token is predicted after {prospect.ttft_s:.1f} s, the objective is {objectives.ttft_s:g} s{kept}",
        limit="ttft",
        retry_after_s=prospect.ttft_s - limit_s,
    )
