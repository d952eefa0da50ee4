"""Which instance prefills: policies as pure functions of (candidates, tuning), in a table by config name.

Every policy weighs all candidates at once, each a position in columns; the caller has left out those that may not
serve. Among near-equal ones the least recently chosen wins, then the first by name.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from daemons.conductor.columns import Floats, Ints, Rows
from daemons.conductor.early_rejection import Objectives
from daemons.conductor.instance_table import InstanceTable
from daemons.conductor.latency import CostColumns
from daemons.conductor.pipeline import PipelineLimits
from daemons.conductor.view import Option, PlacementRequest
from daemons.core.ids import NodeId

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
    admission: str = "objectives"
    objectives: Objectives = field(default_factory=Objectives)
    may_pull: bool = True
    """Whether a prefill may reuse what only other hosts hold."""
    pipeline: PipelineLimits = field(default_factory=PipelineLimits)


@dataclass(frozen=True, slots=True)
class PrefillCandidates:
    """Who may prefill, in the order of their names. `device_tokens`: what each may reuse that is in its own KV arena,
    `local_tokens` of that and of its host, `most_tokens` of that and of the whole pool.
    """

    request: PlacementRequest
    rows: Rows
    queue_s: Floats
    costs: CostColumns
    device_tokens: Ints
    local_tokens: Ints
    most_tokens: Ints
    num_requests: Ints
    last_chosen: Ints
    mean_work_s: float = 0.0
    """What the latest prompts keep an instance busy for; 0 before the first."""

    @property
    def num_behind(self) -> float:
        """Prompts that come to an instance while one waits there: as many as wait now on average (Little's law)."""
        return float(self.queue_s.mean()) / self.mean_work_s if self.mean_work_s else 0.0

    def reusing(self, matched: Ints) -> "Weighed":
        """Time to the first token of each with so many tokens reused; of each way, where that has a row for each."""
        device = np.minimum(matched, self.device_tokens)
        local = np.minimum(matched, self.local_tokens)
        load_s = self.costs.load_s(local - device, matched - local)
        if self.request.staging_s:
            # It is staged while the request is queued, so only what that does not cover counts.
            left_s = np.maximum(load_s, self.request.staging_s - self.queue_s)
            is_slow = matched > np.maximum(self.request.fast_tokens, device)
            load_s = np.where(is_slow, left_s, load_s)
        return Weighed(
            self.queue_s,
            load_s,
            self.costs.prefill_s(self.request.num_prompt_tokens, matched),
            matched,
            device,
        )

    def take_turns(self, value: Floats) -> int:
        """The position of the least value; among the near-equal the least recently chosen."""
        best = float(value.min())
        limit = best + max(TIE_S, TIE_FRACTION * best)
        equal = np.flatnonzero(value <= limit)
        return int(equal[np.argmin(self.last_chosen[equal])])


@dataclass(frozen=True, slots=True)
class Weighed:
    """The terms of an Option for each candidate. `num_behind`: prompts that each of them makes wait for its work."""

    queue_s: Floats
    load_s: Floats
    prefill_s: Floats
    matched_tokens: Ints
    device_tokens: Ints
    num_behind: float = 0.0

    @property
    def work_s(self) -> Floats:
        return np.maximum(self.load_s, self.prefill_s)

    @property
    def total_s(self) -> Floats:
        total_s: Floats = self.queue_s + self.work_s
        return total_s

    @property
    def delay_s(self) -> Floats:
        """Of all who come behind."""
        return self.num_behind * self.work_s

    @property
    def cost_s(self) -> Floats:
        cost_s: Floats = self.total_s + self.delay_s
        return cost_s

    def option(self, position: int, node: NodeId) -> Option:
        """Of one candidate, whose name is `node`."""
        load_s, prefill_s = self.load_s.item(position), self.prefill_s.item(position)
        return Option(
            node,
            self.queue_s.item(position),
            load_s,
            prefill_s,
            self.matched_tokens.item(position),
            self.num_behind * max(load_s, prefill_s),
            self.device_tokens.item(position),
        )

    def options(self, positions: Rows, nodes: Iterable[NodeId]) -> list[Option]:
        """Of these candidates, in this order; `nodes` are their names."""
        load_s, prefill_s = self.load_s.take(positions), self.prefill_s.take(positions)
        columns = (
            self.queue_s.take(positions),
            load_s,
            prefill_s,
            self.matched_tokens.take(positions),
            self.num_behind * np.maximum(load_s, prefill_s),
            self.device_tokens.take(positions),
        )
        return list(map(Option, nodes, *(column.tolist() for column in columns)))

    def fastest(self) -> "Weighed":
        """Of several ways, a row each, the fastest for each candidate; the first of equals."""
        total_s = self.total_s
        num_candidates = total_s.shape[1]
        at = total_s.argmin(axis=0) * num_candidates + np.arange(num_candidates)
        columns = (self.load_s, self.prefill_s, self.matched_tokens, self.device_tokens)
        return Weighed(self.queue_s, *(column.take(at) for column in columns))


@dataclass(frozen=True, slots=True)
class PrefillChoice:
    """`chosen` is a position among the candidates."""

    chosen: int
    weighed: Weighed


PrefillPolicy = Callable[[PrefillCandidates, Tuning], PrefillChoice]


def candidates_of(
    table: InstanceTable, rows: Rows, queue_s: Floats, request: PlacementRequest, mean_work_s: float
) -> PrefillCandidates:
    is_safe = table.is_reuse_safe[rows]
    most = np.where(is_safe, request.matched_tokens, 0)
    local = np.minimum(most, table.by_host(request.local_tokens)[rows])
    if request.expected_on is not None and request.expected_tokens > request.matched_tokens:
        is_maker = is_safe & (rows == table.row_by_node.get(request.expected_on, -1))
        local = np.where(is_maker, request.expected_tokens, local)
        most = np.where(is_maker, request.expected_tokens, most)
    device = np.where(is_safe, table.by_node(request.device_tokens)[rows], 0)
    return PrefillCandidates(
        request=request,
        rows=rows,
        queue_s=queue_s,
        costs=table.costs(rows),
        device_tokens=device,
        local_tokens=np.maximum(local, device),
        most_tokens=np.maximum(most, device),
        num_requests=np.maximum(table.num_promised[rows], table.num_reported[rows]),
        last_chosen=table.last_chosen[rows],
        mean_work_s=mean_work_s,
    )


def fastest_reuse(candidates: PrefillCandidates, tuning: Tuning) -> Weighed:
    """The least predicted time each: reuse all that matched, only what its host has, or is in DRAM, or in its
    own arena, or nothing.
    """
    local = candidates.local_tokens
    most = candidates.most_tokens if tuning.may_pull else local
    if not most.any():
        return candidates.reusing(most)
    ways = [most, local]
    if candidates.request.staging_s:
        ways.append(np.minimum(most, candidates.request.fast_tokens))
    if candidates.device_tokens.any():
        ways.append(candidates.device_tokens)
    ways.append(np.zeros_like(local))
    return candidates.reusing(np.array(ways)).fastest()


def by_random(candidates: PrefillCandidates, tuning: Tuning) -> PrefillChoice:
    """Baseline. The draw depends on the seed and the request's id only."""
    draw = Random(f"{tuning.seed}:{candidates.request.request_id}")
    chosen = draw.randrange(len(candidates.rows))
    return PrefillChoice(chosen, fastest_reuse(candidates, tuning))


def by_least_load(candidates: PrefillCandidates, tuning: Tuning) -> PrefillChoice:
    """Baseline: the shortest queue, whatever is cached where."""
    weighed = fastest_reuse(candidates, tuning)
    return PrefillChoice(candidates.take_turns(candidates.queue_s), weighed)


def by_local_cache(candidates: PrefillCandidates, _: Tuning) -> PrefillChoice:
    """Baseline of the FAST'25 paper, "local cache aware": queue + prefill, reusing only what its host holds."""
    weighed = candidates.reusing(candidates.local_tokens)
    return PrefillChoice(candidates.take_turns(weighed.total_s), weighed)


def by_kvcache(candidates: PrefillCandidates, tuning: Tuning) -> PrefillChoice:
    """Algorithm 1 of the FAST'25 paper: fetch the best prefix where the local one is much shorter, else use the local.

    "Much" is the ratio `balancing_threshold`; no local prefix at all counts as an infinite ratio.
    """
    # The pool is the cluster's, so its longest match is the best anywhere.
    best, local = candidates.request.matched_tokens, candidates.local_tokens
    if tuning.may_pull:
        is_much_shorter = best > tuning.balancing_threshold * local
        matched = np.where(is_much_shorter, candidates.most_tokens, local)
    else:
        matched = local
    weighed = candidates.reusing(matched)
    return PrefillChoice(candidates.take_turns(weighed.total_s), weighed)


def by_lmetric(candidates: PrefillCandidates, _: Tuning) -> PrefillChoice:
    """LMetric (arXiv 2603.15202): new prompt tokens times requests it would then have; local reuse, nothing to tune."""
    weighed = candidates.reusing(candidates.local_tokens)
    new = np.maximum(1, candidates.request.num_prompt_tokens - candidates.local_tokens)
    metric = (new * (candidates.num_requests + 1)).astype(np.float64)
    return PrefillChoice(candidates.take_turns(metric), weighed)


def by_dynamo(candidates: PrefillCandidates, _: Tuning) -> PrefillChoice:
    """The linear cost of NVIDIA Dynamo's router: tokens that wait there + new ones of this prompt; local reuse.

    What waits is known here in time, so it is turned into tokens by what one costs.
    """
    weighed = candidates.reusing(candidates.local_tokens)
    waiting = candidates.queue_s / np.maximum(candidates.costs.token_s, _LEAST_TOKEN_S)
    tokens = waiting - candidates.local_tokens
    return PrefillChoice(candidates.take_turns(tokens - tokens.min()), weighed)


def by_time(candidates: PrefillCandidates, tuning: Tuning) -> PrefillChoice:
    """Ours: the least predicted time, each instance at its own best way to get the prefix: until this prompt's first
    token, and what its work adds to the wait of those who come behind. So while nobody waits the soonest is best, and
    under load the one that has the prefix, though another has the shorter queue.
    """
    weighed = replace(fastest_reuse(candidates, tuning), num_behind=candidates.num_behind)
    return PrefillChoice(candidates.take_turns(weighed.cost_s), weighed)


POLICIES: dict[str, PrefillPolicy] = {
    "random": by_random,
    "least-loaded": by_least_load,
    "cache-aware": by_local_cache,
    "kvcache-centric": by_kvcache,
    "lmetric": by_lmetric,
    "dynamo": by_dynamo,
    "time": by_time,
}
