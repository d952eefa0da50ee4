"""The whole decision: prefill and decode together, of one model and one namespace. Same inputs, same plan."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Final

import msgspec
import numpy as np

from daemons.conductor.admission import admit_decode, admit_prefill
from daemons.conductor.columns import Floats, Rows
from daemons.conductor.decode_placement import (
    DecodeChoice,
    choose_decode,
    pool_load,
)
from daemons.conductor.early_rejection import MODES, Overload, Prospect, Weighed
from daemons.conductor.eligible import eligible_pairs, nobody_serves, unknown_model
from daemons.conductor.instance_table import InstanceTable
from daemons.conductor.pipeline import Prompt, choose_pipeline
from daemons.conductor.prefill_placement import (
    POLICIES,
    PrefillCandidates,
    PrefillChoice,
    Tuning,
    candidates_of,
)
from daemons.conductor.tenant_share import TenantShares
from daemons.conductor.view import InstanceView, Option, PlacementRequest
from daemons.conductor.workload import Workload
from daemons.core.errors import Rejected
from daemons.core.ids import NodeId

MAX_OPTIONS: Final = 12
"""Of each role, the best of those that were weighed: what `mcctl request explain` shows."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision and what it was made from; `matched_tokens` is how much of the match to reuse."""

    prefill: InstanceView
    decode: InstanceView
    matched_tokens: int
    prefill_work_s: float
    """What the prefill instance will be busy for: load and prefill, which overlap."""
    load_s: float
    """Of that, what loading alone would take."""
    step_s: float
    predicted_ttft_s: float
    predicted_tbt_s: float
    """`step_s`, corrected by what the latest requests had."""
    policy: str
    explain: Callable[[], tuple[tuple[Option, ...], tuple[Option, ...]]] = field(
        compare=False, repr=False
    )
    """(prefill, decode): the best that were weighed. To be asked before the cluster changes; the simulator does not."""
    helpers: tuple[NodeId, ...] = ()
    """Further prefill instances that share the prompt; each is busy for as long."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a decision looks at."""

    table: InstanceTable
    workload: Workload
    tenants: TenantShares


def place(
    cluster: Cluster, request: PlacementRequest, tuning: Tuning, *, now_s: float
) -> Placement:
    """Raises NotFound (no such model), Unavailable (nobody alive), Rejected (admission). Changes nothing.

    Where several namespaces serve the model, the best plan of any of them; suspect nodes only when nothing else.
    """
    table = cluster.table
    if request.model not in table.models():
        raise unknown_model(table, request.model)
    pairs = eligible_pairs(table, request)
    if not pairs:
        raise nobody_serves(table, request)
    placements, refusal = [], None
    for prefills, decodes in pairs:
        try:
            decision = _Decision(cluster, request, tuning, now_s)
            placements.append(decision.make(prefills, decodes))
        except Rejected as error:
            refusal = error
    if not placements:
        assert refusal is not None, "no plan and no reason"
        raise refusal
    return min(
        placements, key=lambda p: (p.predicted_ttft_s, p.prefill.last_chosen, p.prefill.node)
    )


@dataclass(frozen=True, slots=True)
class _Decision:
    cluster: Cluster
    request: PlacementRequest
    tuning: Tuning
    now_s: float

    @property
    def table(self) -> InstanceTable:
        return self.cluster.table

    def make(self, prefills: Rows, decodes: Rows) -> Placement:
        """Among the instances of one namespace."""
        table, request, tuning = self.table, self.request, self.tuning
        prefills, queue_s = admit_prefill(table, prefills, request, tuning.max_queue_s, self.now_s)
        admitted, wait = admit_decode(
            table,
            self.cluster.workload,
            decodes,
            request,
            max_queue_s=tuning.max_queue_s,
            now_s=self.now_s,
        )
        candidates, choice = self._choose_prefill(prefills, queue_s, request)
        chosen = _option(table, candidates, choice)
        at_s = self.now_s + chosen.total_s
        decode = choose_decode(table, admitted, request, wait=wait, at_s=at_s)
        reuses = request.matched_tokens or request.expected_on
        if reuses and not table.is_reuse_safe[decode.rows[decode.chosen]]:
            candidates, choice = self._choose_prefill(
                prefills, queue_s, replace(request, matched_tokens=0, expected_on=None)
            )
            chosen = _option(table, candidates, choice)
        chosen, helpers = self._share(candidates, choice.chosen, chosen)
        tbt_s = float(decode.step_s[decode.chosen]) * self.cluster.workload.tbt_ratio
        try:
            self._admit(chosen.total_s, tbt_s, float(queue_s.min()), decode)
        except Overload as error:
            options = self._options(candidates, choice, decode)
            error.weighed = Weighed(chosen.total_s, tbt_s, (*options[0], *options[1]))
            raise
        return Placement(
            prefill=table.view(int(candidates.rows[choice.chosen]), chosen.queue_s),
            decode=table.view(int(decode.rows[decode.chosen]), decode.queue_s),
            matched_tokens=chosen.matched_tokens,
            prefill_work_s=chosen.work_s,
            load_s=chosen.load_s,
            step_s=float(decode.step_s[decode.chosen]),
            predicted_ttft_s=chosen.total_s,
            predicted_tbt_s=tbt_s,
            policy=tuning.policy,
            explain=partial(self._options, candidates, choice, decode),
            helpers=helpers,
        )

    def _share(
        self, candidates: PrefillCandidates, position: int, alone: Option
    ) -> tuple[Option, tuple[NodeId, ...]]:
        """The same option with the help of others, where that is worth it."""
        table, limits = self.table, self.tuning.pipeline
        name = table.described(candidates.rows[position]).pipeline
        if limits.max_stages < 2 or not name:
            return alone, ()
        prompt = Prompt(
            num_tokens=self.request.num_prompt_tokens,
            num_cached=alone.matched_tokens,
            cost=table.cost(alone.node),
            queue_s=alone.queue_s,
            load_s=alone.load_s,
            alone_s=alone.work_s,
        )
        others = [
            other
            for other, row in enumerate(candidates.rows)
            if other != position and table.described(row).pipeline == name
        ]
        queues_s = [float(candidates.queue_s[other]) for other in others]
        group = choose_pipeline(prompt, queues_s, limits)
        if group is None:
            return alone, ()
        shared = msgspec.structs.replace(
            alone, queue_s=group.queue_s, load_s=0.0, prefill_s=group.work_s
        )
        return shared, tuple(table.node(candidates.rows[others[at]]) for at in group.others)

    def _admit(
        self, ttft_s: float, tbt_s: float, shortest_queue_s: float, decode: DecodeChoice
    ) -> None:
        """Raises Overload where the mode of admission refuses it."""
        tuning, workload, now_s = self.tuning, self.cluster.workload, self.now_s

        def load(at_s: float, decode_s: float = inf) -> float:
            return pool_load(
                self.table, decode.rows, tuning.objectives.tbt_s, at_s=at_s, decode_s=decode_s
            )

        prospect = Prospect(
            ttft_s=ttft_s,
            shortest_queue_s=shortest_queue_s,
            tbt_s=tbt_s,
            num_others=int(decode.num_others[decode.chosen]),
            decode_load_now=lambda: load(now_s),
            decode_load_then=lambda: load(now_s + ttft_s, workload.mean_decode_s or inf),
            mean_decode_s=workload.mean_decode_s,
            tenant_share=lambda: self.cluster.tenants.of(self.request.tenant),
            relative_size=self.request.needed_tokens
            / (workload.mean_tokens or self.request.needed_tokens),
        )
        MODES[tuning.admission](prospect, self.request, tuning.objectives, tuning.seed)

    def _choose_prefill(
        self, rows: Rows, queue_s: Floats, request: PlacementRequest
    ) -> tuple[PrefillCandidates, PrefillChoice]:
        mean_work_s = self.cluster.workload.mean_prefill_s
        candidates = candidates_of(self.table, rows, queue_s, request, mean_work_s)
        return candidates, POLICIES[self.tuning.policy](candidates, self.tuning)

    def _options(
        self, candidates: PrefillCandidates, choice: PrefillChoice, decode: DecodeChoice
    ) -> tuple[tuple[Option, ...], tuple[Option, ...]]:
        best = _best(choice.weighed.cost_s, choice.chosen)
        nodes = map(self.table.node, candidates.rows.take(best).tolist())
        return tuple(choice.weighed.options(best, nodes)), self._decode_options(decode)

    def _decode_options(self, choice: DecodeChoice) -> tuple[Option, ...]:
        best = _best(choice.step_s, choice.chosen)
        needed, options = self.request.needed_tokens, []
        for row, step_s in zip(
            choice.rows.take(best).tolist(), choice.step_s.take(best).tolist(), strict=True
        ):
            described = self.table.described(row)
            queue_s = self.cluster.workload.decode_wait_s(
                described.node, described.capacity_tokens, needed, now_s=self.now_s
            )
            options.append(Option(described.node, queue_s, 0.0, step_s, 0))
        return tuple(options)


def _option(table: InstanceTable, candidates: PrefillCandidates, choice: PrefillChoice) -> Option:
    node = table.node(candidates.rows.item(choice.chosen))
    return choice.weighed.option(choice.chosen, node)


def _best(value: Floats, chosen: int) -> Rows:
    """Positions of the least MAX_OPTIONS values in their order, the chosen one always among them."""
    if len(value) > MAX_OPTIONS:
        least = value.argpartition(MAX_OPTIONS - 1)[:MAX_OPTIONS]
        if chosen not in least.tolist():
            least[value[least].argmax()] = chosen
    else:
        least = np.arange(len(value))
    return least.take(value.take(least).argsort(kind="stable"))
