"""P prefill and D decode instances around one pool, placed by the live Conductor.

Each prefill node lends its DRAM to the pool. Reused blocks of other nodes are pulled over the network and stay as
replicas. KV streams to decode layer by layer while it is computed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from daemons.conductor.conductor import Conductor
from daemons.conductor.instance_table import InstanceDescription
from daemons.conductor.prefill_placement import POLICIES, Tuning
from daemons.conductor.view import PlacementRequest
from daemons.core.errors import Rejected
from daemons.core.ids import HostId, NodeId, RequestId
from daemons.simulation.decode_batch import DecodeInstance, RunningSequence
from daemons.simulation.events import EventQueue
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.network import Network
from daemons.simulation.outcome import RequestOutcome
from daemons.simulation.pool import MODEL, SimulatedPool
from daemons.simulation.prefill_instance import PrefillInstance, Prompt
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest

POLICY_NAMES = tuple(POLICIES)


@dataclass(frozen=True, slots=True)
class DisaggregatedPlan:
    """`node_tokens`: DRAM that each prefill node lends; 0 takes the profile's. `may_pull`: reuse across nodes."""

    num_prefills: int
    num_decodes: int
    policy: str = "time"
    may_pull: bool = True
    balancing_threshold: float = 1.5
    max_queue_s: float = inf
    """Whoever would wait longer is turned away."""
    ttft_slo_s: float = 0.0
    """Whoever is predicted to wait longer for the first token is turned away; 0: nobody."""
    seed: int = 0
    node_tokens: int = 0
    eviction: str = "lru"


class DisaggregatedCluster:
    """Feed it a trace once."""

    def __init__(self, plan: DisaggregatedPlan, profile: HardwareProfile) -> None:
        self.network = Network(profile.bandwidth.network)
        tuning = Tuning(
            policy=plan.policy,
            seed=plan.seed,
            balancing_threshold=plan.balancing_threshold,
            max_queue_s=plan.max_queue_s,
            may_pull=plan.may_pull,
            ttft_slo_s=plan.ttft_slo_s,
        )
        self._profile = profile
        self._events = EventQueue()
        prefills = [NodeId(f"prefill-{number}") for number in range(plan.num_prefills)]
        decodes = [NodeId(f"decode-{number}") for number in range(plan.num_decodes)]
        self.conductor = Conductor(tuning)
        for node in (*prefills, *decodes):
            self.conductor.join(_described(node, profile), profile.cost_model())
        self._prefills = {node: PrefillInstance(self._events, profile) for node in prefills}
        self._decodes = {
            node: DecodeInstance(self._events, profile, self._finished) for node in decodes
        }
        node_tokens = plan.node_tokens or profile.kv.dram_tokens
        self.pool = SimulatedPool(prefills, node_tokens, plan.eviction)

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
        local = self.pool.directory.leading_by_host(rows, now_s=now_s) if rows else {}
        question = PlacementRequest(
            request_id=RequestId(str(request.number)),
            model=MODEL,
            num_prompt_tokens=request.input_tokens,
            max_tokens=request.output_tokens,
            matched_tokens=len(rows) * BLOCK_TOKENS,
            local_tokens={host: blocks * BLOCK_TOKENS for host, blocks in local.items()},
        )
        try:
            placement = self.conductor.place(question, now_s=now_s)
        except Rejected as error:
            outcome.why_rejected = error.message
            outcome.finished_s = now_s
            return
        self.conductor.account(placement, question, now_s=now_s)
        rows = rows[: placement.matched_tokens // BLOCK_TOKENS]
        outcome.cached_tokens = len(rows) * BLOCK_TOKENS
        outcome.predicted_ttft_s = placement.predicted_ttft_s
        outcome.prefill, outcome.decode = placement.prefill.node, placement.decode.node
        num_local = min(len(rows), local.get(placement.prefill.host_id, 0))
        pulled_s = self._pull(request, rows, num_local, placement.prefill.node)
        outcome.remote_tokens = (len(rows) - num_local) * BLOCK_TOKENS
        self._prefills[placement.prefill.node].queue(
            Prompt(
                outcome,
                pulled_s,
                on_start=partial(self._prefill_begins, request, outcome),
                on_first_token=partial(self._first_token, request, outcome),
            )
        )

    def _pull(
        self, request: TraceRequest, rows: Sequence[int], num_local: int, node: NodeId
    ) -> float:
        """Fetch what the prefill node does not hold itself; when it is there."""
        now_s = self._events.now_s
        found = self.pool.take(rows, len(request.blocks), node, now_s)
        sources = Counter(location.node for location in found[num_local:] if location.node != node)
        pulled_s = now_s
        for source, num_blocks in sorted(sources.items()):
            num_bytes = num_blocks * BLOCK_TOKENS * self._profile.kv.bytes_per_token
            pulled_s = max(pulled_s, self.network.send(source, node, num_bytes, now_s=now_s))
        if sources:
            blocks = request.blocks[: len(rows)]
            self._events.at(pulled_s, lambda: self._store(node, blocks, num_local))
        return pulled_s

    def _prefill_begins(self, request: TraceRequest, outcome: RequestOutcome) -> None:
        """From now on KV flows to decode; it has the link for as long as its bytes take."""
        num_bytes = request.input_tokens * self._profile.kv.bytes_per_token
        now_s = self._events.now_s
        sent_s = self.network.send(outcome.prefill, outcome.decode, num_bytes, now_s=now_s)
        # The last layer is made at the end and follows on its own.
        first_s = now_s + outcome.prefill_s
        last_layer_s = num_bytes / self._profile.kv.num_layers / self._profile.bandwidth.network
        sequence = RunningSequence(
            outcome,
            num_context=request.input_tokens,
            num_left=request.output_tokens - 1,
            last_token_s=first_s,
        )
        if sequence.num_left:
            join = partial(self._decodes[NodeId(outcome.decode)].join, sequence)
            self._events.at(max(sent_s, first_s + last_layer_s), join)

    def _first_token(self, request: TraceRequest, outcome: RequestOutcome) -> None:
        self._store(NodeId(outcome.prefill), request.blocks, outcome.cached_tokens // BLOCK_TOKENS)
        if request.output_tokens == 1:
            outcome.finished_s = self._events.now_s
            self._finished(outcome)

    def _finished(self, outcome: RequestOutcome) -> None:
        self.conductor.finish(RequestId(str(outcome.number)), now_s=self._events.now_s)

    def _store(self, node: NodeId, blocks: Sequence[int], first: int) -> None:
        self.pool.store(node, blocks, first, now_s=self._events.now_s)


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
    )
