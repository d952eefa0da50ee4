"""`mcctl bench load`: requests of a trace sent when they are due, and what share of them met both objectives.

Open loop: a request is sent at its time whatever became of those before it. Only where `concurrency` are under way is
one left out, and it counts as one that met neither objective.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import median
from threading import BoundedSemaphore
from typing import Final, Literal

import msgspec
import numpy as np

from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.core.units import format_duration
from daemons.simulation.outcome import Objectives, Spread, slow_mean, spread
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest
from mcctl.bench.overload import Overload, overload_rows
from mcctl.openai_stream import Answer, Body, OpenAiClient
from mcctl.render import Column
from mcctl.views.line_plot import Chart, Line, page

Progress = Callable[[str], object]

NUM_WARM_UP: Final = 20
_FIRST_TOKEN_ID: Final = 16
"""Below it are the control tokens of most vocabularies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """`length_scale` shrinks prompts, answers and the blocks of the trace alike, so that what is shared stays so."""

    model: str
    vocab_size: int
    requests: Sequence[TraceRequest]
    objectives: Objectives
    length_scale: float = 1.0
    concurrency: int = 64
    request_timeout_s: float = 120.0
    seed: int = 0


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `--output json` prints; fields are only ever added. Times are the client's, of answered requests."""

    source: str
    model: str
    num_requests: int
    num_answered: int
    num_rejected: int
    """429."""
    num_failed: int
    num_not_sent: int
    """Due while as many as `--concurrency` were under way."""
    why_failed: str | None
    """Of the first."""
    offered_per_s: float
    """From the first to the last that is due; 0 where all are due at once."""
    answered_per_s: float
    output_tokens_per_s: float
    ttft_slo_s: float
    tbt_slo_s: float
    goodput: float
    """Share of all requests that met both objectives."""
    good_per_s: float
    """So many of these a second, until the last answer."""
    ttft_s: Spread
    tbt_s: Spread
    """Of a request: the mean of its slowest tenth of gaps."""
    prompt_tokens: int
    reused_fraction: float
    prediction_error: float
    """Median of |predicted - actual| / actual TTFT."""
    warm_prediction_error: float | None
    """The same without the first 20 answers, from which instances learn how long things take; None: no more came."""
    makespan_s: float
    max_late_s: float
    """How long after its time a request was sent, at worst; large where this client was too slow."""
    ttft_percentiles_s: list[float]
    """101 values: of 0 to 100 per cent; empty where nothing was answered."""
    tbt_percentiles_s: list[float]
    due_within_s: float = 0.0
    """From the first to the last."""
    overload: Overload | None = None
    """With `--overload`."""


@dataclass(frozen=True, slots=True)
class _Sent:
    state: Literal["answered", "rejected", "failed", "not sent"]
    late_s: float = 0.0
    answer: Answer | None = None
    why: str = ""


class LoadBench:
    """Runs a plan once."""

    def __init__(self, client: OpenAiClient, plan: LoadPlan, progress: Progress) -> None:
        self._client = client
        self._plan = plan
        self._progress = progress
        self._free = BoundedSemaphore(plan.concurrency)
        self._began_s = 0.0

    def run(self, source: str) -> LoadResult:
        plan = self._plan
        span_s = plan.requests[-1].arrival_s
        self._progress(f"{len(plan.requests)} requests within {span_s:.0f} s")
        self._began_s = time.monotonic()
        with ThreadPoolExecutor(plan.concurrency) as pool:
            waiting = []
            for request in plan.requests:
                time.sleep(max(0.0, self._began_s + request.arrival_s - time.monotonic()))
                if self._free.acquire(blocking=False):
                    waiting.append(pool.submit(self._send, request))
            # Each ends by its own deadlines: silence, and the time of the whole answer.
            sent = [future.result() for future in waiting]
        makespan_s = time.monotonic() - self._began_s
        sent += [_Sent("not sent")] * (len(plan.requests) - len(sent))
        return _result(source, plan, sent, makespan_s)

    def _send(self, request: TraceRequest) -> _Sent:
        late_s = 0.0
        try:
            body = request_body(self._plan, request)
            late_s = time.monotonic() - self._began_s - request.arrival_s
            ends_s = time.monotonic() + self._plan.request_timeout_s

            def check(_: str) -> None:
                if time.monotonic() > ends_s:
                    raise Unavailable(f"not answered within {self._plan.request_timeout_s:g} s")

            return _Sent("answered", late_s, self._client.complete(body, check))
        except Exhausted as error:
            return _Sent("rejected", late_s, why=error.message)
        except McError as error:
            return _Sent("failed", late_s, why=error.message)
        finally:
            self._free.release()


def request_body(plan: LoadPlan, request: TraceRequest) -> Body:
    """Equal blocks of the trace are equal tokens, whatever follows is the request's own."""
    block_tokens = max(1, round(BLOCK_TOKENS * plan.length_scale))
    ids = range(_FIRST_TOKEN_ID, plan.vocab_size)
    tokens: list[int] = []
    for block in request.blocks:
        tokens += Random(f"{plan.seed}:{block}").choices(ids, k=block_tokens)
    rest = request.input_tokens - BLOCK_TOKENS * len(request.blocks)
    own = max(0 if tokens else 1, round(rest * plan.length_scale))
    tokens += Random(f"{plan.seed}:own:{request.number}").choices(ids, k=own)
    return {
        "model": plan.model,
        "prompt": tokens,
        "max_tokens": max(1, round(request.output_tokens * plan.length_scale)),
        "temperature": 0,
        "ignore_eos": True,
    }


def _result(source: str, plan: LoadPlan, sent: Sequence[_Sent], makespan_s: float) -> LoadResult:
    answers = [each.answer for each in sent if each.answer is not None]
    ttfts = [answer.ttft_s for answer in answers]
    tbts = [_tbt_s(answer) for answer in answers]
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    states = [each.state for each in sent]
    slo = plan.objectives
    good = sum(t <= slo.ttft_s and b <= slo.tbt_s for t, b in zip(ttfts, tbts, strict=True))
    errors = prediction_errors(answers)
    warm = prediction_errors(answers[NUM_WARM_UP:])
    span_s = plan.requests[-1].arrival_s
    return LoadResult(
        source=source,
        model=plan.model,
        num_requests=len(sent),
        num_answered=len(answers),
        num_rejected=states.count("rejected"),
        num_failed=states.count("failed"),
        num_not_sent=states.count("not sent"),
        why_failed=next((each.why for each in sent if each.state == "failed"), None),
        offered_per_s=(len(sent) - 1) / span_s if span_s else 0.0,
        answered_per_s=len(answers) / makespan_s,
        output_tokens_per_s=sum(answer.completion_tokens for answer in answers) / makespan_s,
        ttft_slo_s=slo.ttft_s,
        tbt_slo_s=slo.tbt_s,
        goodput=good / len(sent),
        good_per_s=good / makespan_s,
        ttft_s=spread(ttfts),
        tbt_s=spread(tbts),
        prompt_tokens=prompt_tokens,
        reused_fraction=sum(answer.cached_tokens for answer in answers) / max(1, prompt_tokens),
        prediction_error=median(errors) if errors else 0.0,
        warm_prediction_error=median(warm) if warm else None,
        makespan_s=makespan_s,
        max_late_s=max(each.late_s for each in sent),
        ttft_percentiles_s=_percentiles(ttfts),
        tbt_percentiles_s=_percentiles(tbts),
        due_within_s=span_s,
    )


def prediction_errors(answers: Sequence[Answer]) -> list[float]:
    """|predicted - actual| / actual TTFT of each that has both."""
    return [
        abs(answer.mooncake.predicted_ttft_s - answer.ttft_s) / answer.ttft_s
        for answer in answers
        if answer.mooncake.predicted_ttft_s and answer.ttft_s
    ]


def charts(result: LoadResult) -> str:
    """SVG: share of answered requests within a time."""
    named = (
        ("Share of answers by time to first token", result.ttft_percentiles_s),
        ("Share of answers by time between tokens, slowest tenth", result.tbt_percentiles_s),
    )
    return page(
        [
            Chart(title, "seconds", [Line(result.source, [(v, i / 100) for i, v in enumerate(of)])])
            for title, of in named
        ]
    )


def load_rows(result: LoadResult) -> list[tuple[str, str]]:
    """For people."""
    ttft, tbt = result.ttft_s, result.tbt_s
    return [
        ("requests", f"{result.num_requests}, {_offered(result)}"),
        ("answered", f"{result.num_answered}, {result.answered_per_s:.2f}/s"),
        ("rejected (429)", str(result.num_rejected)),
        ("failed", f"{result.num_failed} {result.why_failed or ''}".strip()),
        ("not sent", str(result.num_not_sent)),
        ("TTFT p50, p90, p99", _three(ttft) if result.num_answered else "-"),
        ("TBT p50, p90, p99", _three(tbt) if result.num_answered else "-"),
        (
            "goodput",
            f"{result.goodput:.0%}, {result.good_per_s:.2f}/s, within {format_duration(result.ttft_slo_s)} to the "
            f"first token, {format_duration(result.tbt_slo_s)} between tokens",
        ),
        ("output", f"{result.output_tokens_per_s:.0f} tokens/s"),
        ("reused", f"{result.reused_fraction:.0%} of {result.prompt_tokens} prompt tokens"),
        ("TTFT predicted", _prediction(result) if result.num_answered else "-"),
        ("sent late", f"{format_duration(result.max_late_s)} at most"),
        *(overload_rows(result.overload) if result.overload is not None else ()),
    ]


LOAD_COLUMNS: Final = [
    Column("figure", lambda row: row[0]),
    Column("value", lambda row: row[1]),
]


def _offered(result: LoadResult) -> str:
    """A few requests come at another rate than asked for, by chance: so it says from what it is."""
    if not result.offered_per_s:
        return "all at once"
    return (
        f"due within {format_duration(result.due_within_s)}: {result.offered_per_s:.2f}/s offered"
    )


def _prediction(result: LoadResult) -> str:
    """Against the client's own clock."""
    warm = result.warm_prediction_error
    after = "" if warm is None else f"; {warm:.0%} after the first {NUM_WARM_UP} answers"
    return f"off by {result.prediction_error:.0%} of the actual one, median{after}"


def _three(of: Spread) -> str:
    return ", ".join(format_duration(value) for value in (of.p50, of.p90, of.p99))


def _tbt_s(answer: Answer) -> float:
    """0 for an answer of one piece."""
    times = answer.piece_times_s
    return slow_mean([(after - before, 1) for before, after in pairwise(times)])


def _percentiles(values: Sequence[float]) -> list[float]:
    return [float(value) for value in np.percentile(values, range(101))] if values else []
