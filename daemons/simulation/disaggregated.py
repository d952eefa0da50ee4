"""P prefill and D decode instances around one pool, placed by the live Conductor.

Each prefill node lends its DRAM to the pool, and has an SSD below it where the plan says so. Reused blocks of other
nodes are pulled over the network and stay as replicas, those of lower tiers are staged while a prompt is queued. KV
streams to decode layer by layer while it is computed. Long prompts go over several prefill nodes where that pays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from daemons.conductor.conductor import Conductor
from daemons.conductor.early_rejection import MODES, Objectives
from daemons.conductor.hot_blocks import HotRules
from daemons.conductor.instance_table import InstanceDescription
from daemons.conductor.pipeline import PipelineLimits
from daemons.conductor.prefill_placement import POLICIES, Tuning
from daemons.conductor.view import PlacementRequest
from daemons.core.errors import Rejected
from daemons.core.ids import HostId, NodeId, RequestId
from daemons.simulation.decode_batch import DecodeInstance, RunningSequence
from daemons.simulation.device_tier import DeviceArena, InUse
from daemons.simulation.events import EventQueue
from daemons.simulation.fetch import Fetched, Fetcher
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.hot_copies import HotCopies
from daemons.simulation.lower_tiers import Device, LowerSizes
from daemons.simulation.network import Network
from daemons.simulation.outcome import RequestOutcome
from daemons.simulation.pool import MODEL, SimulatedPool
from daemons.simulation.prefill_instance import PrefillInstance, Prompt
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest
from daemons.store.directory.columns import Rows
from daemons.store.directory.device_index import DeviceIndex

HOT_WINDOW_S = 60.0
HOT_REPLICAS = 3
POLICY_NAMES = tuple(POLICIES)
ADMISSION_NAMES = tuple(MODES)


@dataclass(frozen=True, slots=True)
class DisaggregatedPlan:
    """`node_tokens`: DRAM that each prefill node lends; 0 takes the profile's. `may_pull`: reuse across nodes.

    `ssd_tokens`: of each prefill node; `object_tokens`: of one store for all; 0: none.
    """

    num_prefills: int
    num_decodes: int
    policy: str = "time"
    may_pull: bool = True
    balancing_threshold: float = 1.5
    max_queue_s: float = inf
    """Whoever would wait longer is turned away."""
    admission: str = "objectives"
    ttft_slo_s: float = 0.0
    """Whoever is predicted to miss an objective is turned away; 0: nobody for this one."""
    tbt_slo_s: float = 0.0
    shed_from: float = 0.85
    decode_slo_s: float = 0.0
    """A decode node turns away whose KV comes while those it has get their tokens more slowly than this; 0: nobody."""
    seed: int = 0
    node_tokens: int = 0
    eviction: str = "lru"
    ssd_tokens: int = 0
    object_tokens: int = 0
    hot_uses: int = 0
    """Reads in a minute for which a block gets another replica, up to three, as the pool's config has it; 0: none."""
    max_pipeline: int = 1
    """Prefill nodes that may share one long prompt, each with a range of the layers."""
    expects_siblings: bool = True
    """Whether a prompt may count on what one before it is still making, as the papers' Conductor does not."""
    device_tokens: int = 0
    """KV that each prefill node keeps in its devices' memory once a prompt is done; 0: none."""


class DisaggregatedCluster:
    """Feed it a trace once."""

    def __init__(self, plan: DisaggregatedPlan, profile: HardwareProfile) -> None:
        self.network = Network(profile.bandwidth.network)
        self._expects_siblings = plan.expects_siblings
        tuning = Tuning(
            policy=plan.policy,
            seed=plan.seed,
            balancing_threshold=plan.balancing_threshold,
            max_queue_s=plan.max_queue_s,
            may_pull=plan.may_pull,
            admission=plan.admission,
            objectives=Objectives(plan.ttft_slo_s, plan.tbt_slo_s, plan.shed_from),
            pipeline=PipelineLimits(plan.max_pipeline),
        )
        self._profile = profile
        self._decode_slo_s = plan.decode_slo_s
        self._events = EventQueue()
        prefills = [NodeId(f"prefill-{number}") for number in range(plan.num_prefills)]
        decodes = [NodeId(f"decode-{number}") for number in range(plan.num_decodes)]
        self.conductor = Conductor(tuning)
        for node in (*prefills, *decodes):
            self.conductor.join(_described(node, profile), profile.cost_model())
        self._prefills = {
            node: PrefillInstance(self._events, profile, tuning.pipeline.chunk_tokens)
            for node in prefills
        }
        self._decodes = {
            node: DecodeInstance(self._events, profile, self._finished) for node in decodes
        }
        self._device_index = DeviceIndex()
        self._arenas = {
            node: DeviceArena(node, plan.device_tokens, self._device_index)
            for node in prefills
            if plan.device_tokens
        }
        node_tokens = plan.node_tokens or profile.kv.dram_tokens
        self.pool = SimulatedPool(prefills, node_tokens, plan.eviction)
        block_bytes = BLOCK_TOKENS * profile.kv.bytes_per_token
        sizes = LowerSizes(
            plan.ssd_tokens // BLOCK_TOKENS, plan.object_tokens // BLOCK_TOKENS, block_bytes
        )
        self.pool.add_lower(sizes, lambda tier: Device(profile.storage_rates(tier)))
        self._slots: dict[int, InUse] = {}
        """Of prompts whose turn came just now, by number."""
        self._fetcher = Fetcher(self.pool, self.network, block_bytes)
        rules = HotRules(plan.hot_uses, HOT_WINDOW_S, HOT_REPLICAS)
        self.hot = HotCopies(self.pool, self.network, self._events, rules, block_bytes)

    def run(self, requests: Sequence[TraceRequest]) -> list[RequestOutcome]:
        outcomes = [
            RequestOutcome(
                request.number, request.arrival_s, request.input_tokens, request.output_tokens
            )
            for request in requests
        ]
        for request, outcome in zip(requests, outcomes, strict=True):
            self._events.at(request.arrival_s, partial(self._arrive, request, outcome))
        self._events.run()
        return outcomes

    # -- one request ---------------------------------------------------------------------------------------------

    def _arrive(self, request: TraceRequest, outcome: RequestOutcome) -> None:
        now_s = self._events.now_s
        hashes = self.pool.hashes(request.blocks)
        rows = self.pool.directory.find_prefix(hashes, now_s=now_s)
        local = self.pool.directory.leading_by_host(rows, now_s=now_s)
        slow = self._fetcher.slow_part(rows, now_s=now_s)
        held = self._device_index.leading(hashes)
        expected = None
        if self._expects_siblings:
            expected = self.conductor.expected(hashes, len(rows), now_s=now_s)
        question = PlacementRequest(
            request_id=RequestId(str(request.number)),
            model=MODEL,
            num_prompt_tokens=request.input_tokens,
            max_tokens=request.output_tokens,
            matched_tokens=len(rows) * BLOCK_TOKENS,
            local_tokens={host: blocks * BLOCK_TOKENS for host, blocks in local.items()},
            expected_on=None if expected is None else expected[0],
            expected_tokens=0 if expected is None else expected[1] * BLOCK_TOKENS,
            device_tokens={node: blocks * BLOCK_TOKENS for node, blocks in held.items()},
            fast_tokens=slow.fast_tokens,
            staging_s=slow.staging_s,
        )
        try:
            placement = self.conductor.place(question, now_s=now_s)
        except Rejected as error:
            outcome.why_rejected = error.message
            outcome.finished_s = now_s
            return
        self.conductor.account(placement, question, now_s=now_s)
        rows = rows[: placement.matched_tokens // BLOCK_TOKENS]
        self.conductor.expect(placement, hashes, len(rows), now_s=now_s)
        outcome.cached_tokens = len(rows) * BLOCK_TOKENS
        outcome.predicted_ttft_s = placement.predicted_ttft_s
        outcome.prefill, outcome.decode = placement.prefill.node, placement.decode.node
        fetched = self._fetch(request, outcome, rows, held.get(placement.prefill.node, 0))
        self.hot.used(request.blocks, len(rows))
        helpers = placement.helpers
        outcome.num_stages = 1 + len(helpers)
        self._prefills[placement.prefill.node].queue(
            Prompt(
                outcome,
                fetched.ready_s,
                on_start=partial(self._prefill_begins, request, outcome, helpers),
                on_first_token=partial(self._first_token, request, outcome, helpers),
                on_turn=partial(
                    self._turn_comes, request, outcome, placement.matched_tokens, fetched
                ),
            ),
            tuple(self._prefills[node] for node in helpers),
        )

    def _turn_comes(
        self,
        request: TraceRequest,
        outcome: RequestOutcome,
        planned_tokens: int,
        fetched: Fetched,
    ) -> None:
        """What others made here while it waited, where the plan counted on it, is in this node's memory by now."""
        now_s, directory = self._events.now_s, self.pool.directory
        hashes = self.pool.hashes(request.blocks)
        if planned_tokens > outcome.cached_tokens:
            rows = directory.find_prefix(hashes, now_s=now_s)
            here = directory.leading_by_host(rows, now_s=now_s).get(HostId(outcome.prefill), 0)
            found = min(here * BLOCK_TOKENS, planned_tokens)
            outcome.cached_tokens = max(outcome.cached_tokens, found)
        arena = self._arenas.get(NodeId(outcome.prefill))
        used = None
        if arena is not None and outcome.num_stages == 1:
            used = arena.start(hashes, request.input_tokens)
        if used is not None:
            self._slots[outcome.number] = used
            outcome.device_tokens = used.num_held * BLOCK_TOKENS
            outcome.cached_tokens = max(outcome.cached_tokens, outcome.device_tokens)
            _count(outcome, fetched, used.num_held)

    def _fetch(
        self, request: TraceRequest, outcome: RequestOutcome, rows: Rows, num_held: int
    ) -> Fetched:
        """Begin to bring what the prefill node has not in its DRAM, nor first in its arena."""
        node, now_s = NodeId(outcome.prefill), self._events.now_s
        fetched = self._fetcher.fetch(
            rows, len(request.blocks), node, num_held=num_held, now_s=now_s
        )
        slow = (*fetched.ssd, *fetched.object)
        _count(outcome, fetched, num_held)

        def arrived() -> None:
            now_s = self._events.now_s
            self.pool.store_some(node, request.blocks, fetched.remote, now_s=now_s)
            self.pool.promote(node, request.blocks, slow, now_s=now_s)

        if fetched.remote or slow:
            self._events.at(fetched.ready_s, arrived)
        return fetched

    def _prefill_begins(
        self, request: TraceRequest, outcome: RequestOutcome, helpers: Sequence[NodeId]
    ) -> None:
        """From now on KV flows to decode, of each node its part; it has the link for as long as its bytes take."""
        num_bytes = request.input_tokens * self._profile.kv.bytes_per_token
        now_s = self._events.now_s
        share = num_bytes // outcome.num_stages
        sent_s = max(
            self.network.send(node, outcome.decode, share, now_s=now_s)
            for node in (outcome.prefill, *helpers)
        )
        # The last layer is made at the end and follows on its own.
        first_s = now_s + outcome.prefill_s
        last_layer_s = num_bytes / self._profile.kv.num_layers / self._profile.bandwidth.network
        sequence = RunningSequence(
            outcome,
            num_context=request.input_tokens,
            num_left=request.output_tokens - 1,
            last_token_s=first_s,
        )
        there_s = max(sent_s, first_s + last_layer_s)
        if sequence.num_left:
            self._events.at(there_s, partial(self._join, sequence))
        used = self._slots.pop(outcome.number, None)
        if used is not None:
            arena, hashes = self._arenas[NodeId(outcome.prefill)], self.pool.hashes(request.blocks)
            self._events.at(first_s, partial(arena.computed, used, hashes, now_s=first_s))
            self._events.at(there_s, partial(arena.release, used))

    def _join(self, sequence: RunningSequence) -> None:
        """The KV is there. Who is turned away now has been prefilled for nothing (arXiv paper, section 7.2)."""
        outcome = sequence.outcome
        decode = self._decodes[NodeId(outcome.decode)]
        if 0 < self._decode_slo_s < decode.step_s:
            outcome.why_rejected = f"{outcome.decode} has too many others"
            outcome.finished_s = self._events.now_s
            self._finished(outcome)
        else:
            decode.join(sequence)

    def _first_token(
        self, request: TraceRequest, outcome: RequestOutcome, helpers: Sequence[NodeId]
    ) -> None:
        """Blocks of a group are gathered at its first instance."""
        first = outcome.cached_tokens // BLOCK_TOKENS
        num_bytes = (
            request.input_tokens - outcome.cached_tokens
        ) * self._profile.kv.bytes_per_token
        whole_s = self._events.now_s
        for node in helpers:
            share = num_bytes // outcome.num_stages
            sent_s = self.network.send(node, outcome.prefill, share, now_s=self._events.now_s)
            whole_s = max(whole_s, sent_s)
        store = partial(self._store, NodeId(outcome.prefill), request.blocks, first)
        if helpers:
            self._events.at(whole_s, store)
        else:
            store()
        if request.output_tokens == 1:
            outcome.finished_s = self._events.now_s
            self._finished(outcome)

    def _finished(self, outcome: RequestOutcome) -> None:
        self.conductor.finish(
            RequestId(str(outcome.number)),
            now_s=self._events.now_s,
            tbt_s=outcome.tbt_s,
            has_tokens=not outcome.why_rejected,
        )

    def _store(self, node: NodeId, blocks: Sequence[int], first: int) -> None:
        self.pool.store(node, blocks, first, now_s=self._events.now_s)


def _count(outcome: RequestOutcome, fetched: Fetched, num_held: int) -> None:
    """What was fetched of blocks that the arena has by now was fetched for nothing: no tier gave them."""
    outcome.remote_tokens, outcome.ssd_tokens, outcome.object_tokens = (
        BLOCK_TOKENS * sum(depth >= num_held for depth in depths)
        for depths in (fetched.remote, fetched.ssd, fetched.object)
    )


def _described(node: NodeId, profile: HardwareProfile) -> InstanceDescription:
    """Each is a host of its own."""
    is_prefill = node.startswith("prefill")
    return InstanceDescription(
        node=node,
        role="prefill" if is_prefill else "decode",
        host_id=HostId(node),
        model=MODEL,
        namespace=b"",
        capacity_tokens=0 if is_prefill else profile.kv.device_tokens,
        pipeline="all" if is_prefill else "",
    )
