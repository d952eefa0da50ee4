"""What became of one request, and of all of them: times to first token and between tokens, reuse, goodput."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

import msgspec
import numpy as np

SLOW_FRACTION = 0.1
"""A request's TBT is the mean of its longest tenth of gaps, as in the FAST'25 paper."""

Gap = tuple[float, int]
"""(seconds, how many times in a row)."""


@dataclass(slots=True)
class RequestOutcome:
    """Times in seconds of the virtual clock; `gaps` between its tokens."""

    number: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    remote_tokens: int = 0
    """Of the cached ones: pulled from another node's DRAM."""
    ssd_tokens: int = 0
    object_tokens: int = 0
    """Of the cached ones: read from these tiers, of whatever node."""
    device_tokens: int = 0
    """Of the cached ones: the first, which its prefill instance still had in its KV arena."""
    prefill: str = ""
    decode: str = ""
    predicted_ttft_s: float = 0.0
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    """What it kept its prefill instance busy, and each of the others that shared it."""
    num_stages: int = 1
    """Prefill instances that it went over."""
    finished_s: float = 0.0
    gaps: list[Gap] = field(default_factory=list)
    why_rejected: str = ""

    @property
    def tbt_s(self) -> float:
        """0 for a request of one token."""
        return slow_mean(self.gaps)


def slow_mean(gaps: Sequence[Gap]) -> float:
    """Mean of the longest tenth, of at least one."""
    left = ceil(SLOW_FRACTION * sum(count for _, count in gaps))
    num_slow, total_s = left, 0.0
    for seconds, count in sorted(gaps, reverse=True):
        if not left:
            break
        taken = min(left, count)
        total_s += seconds * taken
        left -= taken
    return total_s / num_slow if num_slow else 0.0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of one figure over all finished requests, seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class LoadSample(msgspec.Struct, frozen=True, kw_only=True):
    """From `time_s` to the next sample: how busy prefill was, 0..1, and how many sequences were in decode."""

    time_s: float
    prefill_busy: float
    decode_sequences: float


class HitSample(msgspec.Struct, frozen=True, kw_only=True):
    """Of the prompt tokens that came from `time_s` to the next sample: shares that each tier had."""

    time_s: float
    dram: float
    ssd: float
    object: float
    device: float = 0.0


class TierUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one tier gave to all finished requests. `hit_fraction` is of all prompt tokens."""

    tier: str
    hit_fraction: float
    capacity_gb: float
    read_gb: float = 0.0
    written_gb: float = 0.0
    """By its devices; nothing is counted for DRAM."""


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `mcctl simulate run --output json` prints; fields are only ever added."""

    cluster: str
    policy: str
    num_prefills: int
    num_requests: int
    num_rejected: int
    ttft_s: Spread
    tbt_s: Spread
    goodput: float
    """Share of all requests that met both SLOs; a rejected one met neither."""
    requests_per_s: float
    reused_fraction: float
    """Of all prompt tokens."""
    remote_fraction: float
    prefill_s_per_request: float
    prediction_error: float
    """Median of |predicted - actual| / actual TTFT; 0 where nothing was predicted."""
    network_gb: float
    makespan_s: float
    load: list[LoadSample]
    ttft_percentiles_s: list[float]
    """101 values: of 0 to 100 per cent of the finished requests."""
    tbt_percentiles_s: list[float]
    eviction: str = ""
    admission: str = ""
    """Of the pool; empty where there is none."""
    tiers: list[TierUse] = msgspec.field(default_factory=list)
    """The fastest first; those that the plan has."""
    hits: list[HitSample] = msgspec.field(default_factory=list)
    num_pipelined: int = 0
    """Requests whose prompt went over several prefill instances."""
    num_hot_copies: int = 0
    """Blocks that were copied to another node because they were hot."""
    lost_gb: float = 0.0
    """KV that left the lowest tier, or that a device was too slow to take."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """Service level objectives, seconds."""

    ttft_s: float = 30.0
    tbt_s: float = 0.1

    def are_met(self, outcome: RequestOutcome) -> bool:
        return (
            not outcome.why_rejected
            and outcome.ttft_s <= self.ttft_s
            and outcome.tbt_s <= self.tbt_s
        )


def spread(values: Sequence[float]) -> Spread:
    """All zero when there is no value."""
    if not len(values):
        return Spread(mean=0.0, p50=0.0, p90=0.0, p99=0.0)
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return Spread(mean=float(np.mean(values)), p50=float(p50), p90=float(p90), p99=float(p99))


def percentiles(values: Sequence[float]) -> list[float]:
    """At 0, 1, ... 100 per cent; nothing when there is no value."""
    return [float(value) for value in np.percentile(values, range(101))] if len(values) else []


def load_over_time(
    outcomes: Sequence[RequestOutcome], num_prefills: int, num_samples: int = 60
) -> list[LoadSample]:
    """`num_samples` equal parts of the run, from when each request was where."""
    end_s = max((outcome.finished_s for outcome in outcomes), default=0.0)
    if end_s <= 0:
        return []
    edges = np.linspace(0.0, end_s, num_samples + 1)
    done = [outcome for outcome in outcomes if not outcome.why_rejected]
    first_s = np.array([outcome.arrival_s + outcome.ttft_s for outcome in done])
    # A prompt over several instances counts for each of them.
    began_s = first_s - np.array([o.prefill_s for o in done])
    stages = np.array([o.num_stages for o in done], np.int64)
    busy_s = _overlap(np.repeat(began_s, stages), np.repeat(first_s, stages), edges)
    decode_s = _overlap(first_s, np.array([o.finished_s for o in done]), edges)
    width_s = edges[1] - edges[0]
    return [
        LoadSample(
            time_s=float(edges[index]),
            prefill_busy=min(1.0, float(busy_s[index] / width_s / num_prefills)),
            decode_sequences=float(decode_s[index] / width_s),
        )
        for index in range(num_samples)
    ]


def hits_over_time(outcomes: Sequence[RequestOutcome], num_samples: int = 30) -> list[HitSample]:
    """`num_samples` equal parts of the time in which requests came; those without any are left out."""
    end_s = max((outcome.arrival_s for outcome in outcomes), default=0.0)
    if end_s <= 0:
        return []
    done = [outcome for outcome in outcomes if not outcome.why_rejected]
    part = np.array([min(num_samples - 1, int(o.arrival_s / end_s * num_samples)) for o in done])

    def sums(values: list[int]) -> np.typing.NDArray[np.float64]:
        return np.bincount(part, np.array(values, np.float64), num_samples).astype(np.float64)

    if not done:
        return []
    total = sums([o.input_tokens for o in done])
    ssd, below = sums([o.ssd_tokens for o in done]), sums([o.object_tokens for o in done])
    device = sums([o.device_tokens for o in done])
    dram = sums([o.cached_tokens for o in done]) - ssd - below - device
    return [
        HitSample(
            time_s=end_s * index / num_samples,
            dram=float(dram[index] / total[index]),
            ssd=float(ssd[index] / total[index]),
            object=float(below[index] / total[index]),
            device=float(device[index] / total[index]),
        )
        for index in np.flatnonzero(total).tolist()
    ]


def _overlap(
    starts: np.typing.NDArray[np.float64],
    ends: np.typing.NDArray[np.float64],
    edges: np.typing.NDArray[np.float64],
) -> np.typing.NDArray[np.float64]:
    """Seconds of all intervals within each part: what lies before an edge, then differences."""
    lengths = ends - starts
    before = np.array([np.clip(edge - starts, 0.0, lengths).sum() for edge in edges])
    parts: np.typing.NDArray[np.float64] = np.diff(before)
    return parts
