"""The papers' figures that can be had from the conversation trace or made-up traffic, ours beside theirs, each with its
tolerance.

Where a row is out of tolerance it says so; `note` tells what is known of the reason.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from daemons.simulation import published
from daemons.simulation.capacity import hit_fraction
from daemons.simulation.coupled import CoupledCluster, CoupledPlan
from daemons.simulation.disaggregated import DisaggregatedCluster, DisaggregatedPlan
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.long_context import best_rates
from daemons.simulation.outcome import Objectives, RequestOutcome
from daemons.simulation.overload import OVERLOADS, rejections
from daemons.simulation.pd_ratio import splits
from daemons.simulation.simulate import simulate
from daemons.simulation.trace import TraceRequest

NUM_NODES: Final = 16
_TTFT_SLO_S = 30.0

_WHY_CURRENT_IS_MORE: Final = (
    "no goal: as decode nodes check again when the KV comes, full ones refuse as many in any case; the load at arrival "
    "is read a queue too early and refuses others besides, which costs more than the saved prefill time gives. A "
    "simpler model of the same has it so with 3 to 8 prefill nodes and objectives of 52 to 70 ms; there the published "
    "order comes out where early rejection does without that second check, and more answers are slower than asked for"
)

Progress = Callable[[str], object]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`is_goal`: the row has a tolerance to keep; others are for the eye."""

    figure: str
    what: str
    ours: float
    published: float | None
    tolerance: float | None = None
    is_relative: bool = False
    note: str = ""

    @property
    def is_goal(self) -> bool:
        return self.tolerance is not None and self.published is not None

    @property
    def is_met(self) -> bool:
        if self.tolerance is None or self.published is None:
            return True
        allowed = self.tolerance * (self.published if self.is_relative else 1.0)
        return abs(self.ours - self.published) <= allowed


def hit_rate(
    requests: Sequence[TraceRequest], _: HardwareProfile, progress: Progress
) -> Iterator[Comparison]:
    """Figure 9 of the FAST'25 paper: hit rate over the capacity of one cache."""
    for capacity, theirs in published.CONVERSATION_HIT_FRACTION.items():
        progress(f"hit rate of {capacity:,} tokens")
        yield Comparison(
            figure="hit-rate",
            what=f"{capacity:,} tokens",
            ours=hit_fraction(requests, capacity),
            published=theirs,
            tolerance=0.04,
            note="the trace has blocks of 512 tokens, their testbed 256: a little less matches",
        )


def scheduling(
    requests: Sequence[TraceRequest], profile: HardwareProfile, progress: Progress
) -> Iterator[Comparison]:
    """Figure 5 of the FAST'25 paper: mean TTFT of four prefill policies, as ratios."""
    means = {}
    for policy in published.MEAN_TTFT_S:
        progress(f"scheduling, {policy}")
        plan = DisaggregatedPlan(
            8, 8, policy, may_pull=policy == "kvcache-centric", expects_siblings=False
        )
        means[policy] = simulate(requests, plan, profile, Objectives()).ttft_s.mean
        yield Comparison(
            figure="scheduling",
            what=f"mean TTFT, {policy}",
            ours=means[policy],
            published=published.MEAN_TTFT_S[policy],
            note="absolute times are about a second lower here, for all policies alike",
        )
    for one, other in (("random", "least-loaded"), ("kvcache-centric", "cache-aware")):
        yield Comparison(
            figure="scheduling",
            what=f"{one} / {other}",
            ours=means[one] / means[other],
            published=published.MEAN_TTFT_S[one] / published.MEAN_TTFT_S[other],
            tolerance=0.15,
            is_relative=True,
        )


def capacity(
    requests: Sequence[TraceRequest], profile: HardwareProfile, progress: Progress
) -> Iterator[Comparison]:
    """Figure 1 of the FAST'25 paper: share of effective requests under three TBT objectives."""
    profile = profile.with_step_s(published.OBSERVED_STEP_S)
    progress("capacity, 8P+8D")
    ours = DisaggregatedCluster(DisaggregatedPlan(8, 8), profile).run(requests)
    yield from _effective("8P+8D", ours, published.EFFECTIVE_MOONCAKE, 0.05)
    weak = "whole prompts stall decoding, as in vLLM 0.5"
    for what, plan, theirs, tolerance, note in (
        ("vLLM", CoupledPlan(NUM_NODES), published.EFFECTIVE_VLLM, 0.15, weak),
        (
            "vLLM + prefix cache",
            CoupledPlan(NUM_NODES, has_prefix_cache=True),
            published.EFFECTIVE_VLLM_PREFIX,
            None,
            weak,
        ),
        (
            "vLLM + chunks",
            CoupledPlan(NUM_NODES, "chunked"),
            published.EFFECTIVE_VLLM_CHUNKED,
            None,
            "chunked prefill has become far better since",
        ),
        (
            "today's vLLM (prefix cache + chunks)",
            CoupledPlan(NUM_NODES, "chunked", has_prefix_cache=True),
            None,
            None,
            "the fair baseline; nobody published it",
        ),
    ):
        progress(f"capacity, {what}")
        outcomes = CoupledCluster(plan, profile).run(requests)
        yield from _effective(what, outcomes, theirs, tolerance, note)


def long_context(
    _: Sequence[TraceRequest], profile: HardwareProfile, progress: Progress
) -> Iterator[Comparison]:
    """Figure 12 of the arXiv paper; its baseline serves one request at a time, hence +525 %."""
    progress("long contexts")
    theirs = {
        "serial": published.LONG_CONTEXT_VLLM,
        "3P+1D": published.LONG_CONTEXT_MOONCAKE,
    }
    notes = {
        "serial": "the published baseline: no batching, no reuse",
        "3P+1D": "they chose the better of 3P+1D and 2P+2D; the highest rate tested is often enough here",
        "today's vLLM": "the fair baseline; nobody published it",
    }
    for num_tokens, cluster, rate in best_rates(profile):
        yield Comparison(
            figure="long-context",
            what=f"{num_tokens // 1024}k tokens, {cluster}, requests/s",
            ours=rate,
            published=theirs[cluster][num_tokens] if cluster in theirs else None,
            tolerance=0.5 if cluster == "serial" else None,
            is_relative=True,
            note=notes[cluster],
        )


def pd_ratio(
    _: Sequence[TraceRequest], profile: HardwareProfile, progress: Progress
) -> Iterator[Comparison]:
    """Figure 15 of the FAST'25 paper: how 16 nodes are split."""
    progress("prefill and decode nodes, 5P+11D to 11P+5D")
    for result in splits(profile, tuple(published.SPLIT_EFFECTIVE)):
        number = result.num_prefills
        is_last = number == max(published.SPLIT_EFFECTIVE)
        yield Comparison(
            figure="pd-ratio",
            what=f"{result.cluster}, effective requests",
            ours=result.goodput,
            published=published.SPLIT_EFFECTIVE[number],
            tolerance=None if is_last else 0.05,
            note="no goal: their TBT doubles from 5P to 11P, which the times of figures 2 and 14 do not explain"
            if is_last
            else "made-up traffic like the synthetic trace, which is not part of the release",
        )
        yield Comparison(
            figure="pd-ratio",
            what=f"{result.cluster}, mean TTFT",
            ours=result.ttft_s.mean,
            published=published.SPLIT_MEAN_TTFT_S[number],
            note="for the shape: steep to the left of 7P, flat to the right",
        )


def early_rejection(
    requests: Sequence[TraceRequest], profile: HardwareProfile, progress: Progress
) -> Iterator[Comparison]:
    """Table 3 of the arXiv paper: who is rejected, at an arrival rate that is too high for both pools."""
    # With the 26 ms of figure 14 a node is out of KV before its tokens are slow, and nobody would be refused for these.
    profile, shares = profile.with_step_s(published.OBSERVED_STEP_S), {}
    for name, plan in OVERLOADS.items():
        progress(f"early rejection: {name}")
        found = rejections(requests, plan, profile)
        shares[name] = found.share
        yield Comparison(
            figure="early-rejection",
            what=f"rejected, {name}",
            ours=shares[name],
            published=published.REJECTED[name],
            note="8P+8D at twice the rate, as there; with 55 ms between tokens the first of the three rejects as many",
        )
        yield Comparison(
            figure="early-rejection",
            what=f"prefill time spent on the rejected, {name}",
            ours=found.wasted_fraction,
            published=None,
            note="what early rejection is there to save; nobody published it",
        )
    yield Comparison(
        figure="early-rejection",
        what="prediction rejects the fewest",
        ours=float(shares["predicted"] < min(shares["current"], shares["none"])),
        published=1.0,
        tolerance=0.0,
    )
    least = 1 / max(1, len(requests))
    for one, other, note in (
        ("predicted", "current", ""),
        ("predicted", "none", ""),
        ("current", "none", _WHY_CURRENT_IS_MORE),
    ):
        yield Comparison(
            figure="early-rejection",
            what=f"{one} / {other}",
            ours=shares[one] / max(shares[other], least),
            published=published.REJECTED[one] / published.REJECTED[other],
            tolerance=None if note else 0.2,
            is_relative=True,
            note=note,
        )


def _effective(
    what: str,
    outcomes: Sequence[RequestOutcome],
    theirs: dict[float, float] | None,
    tolerance: float | None,
    note: str = "",
) -> Iterator[Comparison]:
    for tbt_s in published.EFFECTIVE_MOONCAKE:
        objectives = Objectives(_TTFT_SLO_S, tbt_s)
        met = sum(objectives.are_met(outcome) for outcome in outcomes) / len(outcomes)
        yield Comparison(
            figure="capacity",
            what=f"{what}, TBT <= {tbt_s * 1000:.0f} ms",
            ours=met,
            published=None if theirs is None else theirs[tbt_s],
            tolerance=tolerance,
            note=note,
        )


Figure = Callable[[Sequence[TraceRequest], HardwareProfile, Progress], Iterator[Comparison]]
FIGURES: Final[dict[str, Figure]] = {
    "hit-rate": hit_rate,
    "scheduling": scheduling,
    "capacity": capacity,
    "long-context": long_context,
    "pd-ratio": pd_ratio,
    "early-rejection": early_rejection,
}
