"""The Conductor whole: who is there, what was promised to whom, and the decision. The master and the simulator run it.

Pure: the caller says what time it is and does what a placement says.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from daemons.conductor.correction import Correction
from daemons.conductor.expected_prefixes import ExpectedPrefixes
from daemons.conductor.instance_table import InstanceDescription, InstanceTable
from daemons.conductor.latency import CostModel, measured
from daemons.conductor.membership import MAX_NODES
from daemons.conductor.placement import Cluster, Placement, place
from daemons.conductor.prefill_placement import Tuning
from daemons.conductor.tenant_share import TenantShares
from daemons.conductor.view import PlacementRequest
from daemons.conductor.workload import Work, Workload
from daemons.core.ids import BlockHash, NodeId, RequestId
from daemons.protocol.node import InstanceLoad, NodeState


@dataclass(frozen=True, slots=True)
class Served:
    """What a request really took, from its turn on the prefill instance until its first token."""

    num_reused_tokens: int
    prefill_s: float


@dataclass(slots=True)
class _Costs:
    """Of one instance: before it measured itself, as it says, and what its requests say of that."""

    seed: CostModel
    measured: CostModel
    correction: Correction = field(default_factory=Correction)

    def corrected(self) -> CostModel:
        return self.correction.apply(self.measured)


class Conductor:
    """A refused request leaves nothing behind; an accepted one counts once it is accounted."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.num_plans = 0
        """Also the serial number of the last plan."""
        self._table = InstanceTable()
        self._workload = Workload(self._table)
        self._tenants = TenantShares()
        self._costs: dict[NodeId, _Costs] = {}
        self._expected = ExpectedPrefixes()
        self._cluster = Cluster(self._table, self._workload, self._tenants)

    @property
    def num_running(self) -> int:
        """Requests that were planned and are not known to have ended."""
        return len(self._workload)

    # -- instances -----------------------------------------------------------------------------------------------

    def join(
        self,
        described: InstanceDescription,
        cost: CostModel | None = None,
        state: NodeState = "alive",
    ) -> None:
        """A new instance, or the same one again. `cost`: what is known of it before it has measured itself."""
        self._table.put(described, state)
        if cost is not None:
            self._costs[described.node] = _Costs(cost, cost)
            self._table.set_cost(described.node, cost)

    def die(self, node: NodeId, *, now_s: float) -> list[Work]:
        """Its life has ended: what was planned on it is void, and returned. Its model stays known."""
        works = self._workload.drop_node(node, now_s=now_s)
        self._table.set_state(node, "dead")
        return works

    def leave(self, node: NodeId, *, now_s: float) -> None:
        """It is gone for good. Fine for one that is not known."""
        self._workload.drop_node(node, now_s=now_s)
        self._table.remove(node)
        self._costs.pop(node, None)

    def keep(self, members: Container[NodeId]) -> None:
        """Forget all others, once there are more than can be members."""
        if len(self._table) > MAX_NODES:
            for node in list(self._table.row_by_node):
                if node not in members:
                    self.leave(node, now_s=0.0)

    def set_state(self, node: NodeId, state: NodeState) -> None:
        self._table.set_state(node, state)

    def hear(self, node: NodeId, load: InstanceLoad, *, now_s: float) -> None:
        """What it measured of itself, and what it has to do."""
        costs = self._costs.setdefault(node, _Costs(CostModel(), CostModel()))
        costs.measured = measured(load, costs.seed)
        self._table.set_cost(node, costs.corrected())
        self._table.set_draining(node, load.is_draining)
        self._workload.hear(node, load, now_s=now_s)

    # -- requests ------------------------------------------------------------------------------------------------

    def place(self, request: PlacementRequest, *, now_s: float) -> Placement:
        """Raises NotFound (no such model), Unavailable (nobody alive), Rejected (admission). Changes nothing."""
        return place(self._cluster, request, self.tuning, now_s=now_s)

    def expected(
        self, hashes: Sequence[BlockHash], num_matched: int, *, now_s: float
    ) -> tuple[NodeId, int] | None:
        """(instance, blocks) where more of this chain is being made than the `num_matched` that exist."""
        return self._expected.find(hashes, num_matched, now_s=now_s)

    def expect(
        self, placement: Placement, hashes: Sequence[BlockHash], num_reused: int, *, now_s: float
    ) -> None:
        """The accounted request will make the blocks of its prompt behind the first `num_reused`."""
        ready_s = now_s + placement.predicted_ttft_s
        self._expected.add(
            placement.prefill.node, hashes[num_reused:], ready_s=ready_s, now_s=now_s
        )

    def account(self, placement: Placement, request: PlacementRequest, *, now_s: float) -> int:
        """It will be done: from now on its instances have that much more to do. The plan's serial number."""
        self.num_plans += 1
        for node in (placement.prefill.node, placement.decode.node, *placement.helpers):
            row = self._table.row_by_node.get(node)
            if row is not None:
                self._table.last_chosen[row] = self.num_plans
        self._workload.add(
            Work(
                request_id=request.request_id,
                prefill=placement.prefill.node,
                decode=placement.decode.node,
                prefill_s=placement.prefill_work_s,
                num_tokens=request.needed_tokens,
                decode_s=placement.step_s * request.max_tokens,
                started_s=now_s,
                context_tokens=request.context_tokens,
                helpers=placement.helpers,
                step_s=placement.step_s,
                num_prompt_tokens=request.num_prompt_tokens,
                num_cached_tokens=placement.matched_tokens,
                load_s=placement.load_s,
            )
        )
        cost = placement.decode.cost
        added_s = cost.sequence_s + cost.context_token_s * request.context_tokens
        self._tenants.add(
            request.tenant, placement.prefill_work_s + added_s * request.max_tokens, now_s=now_s
        )
        return self.num_plans

    def finish(
        self,
        request_id: RequestId,
        *,
        now_s: float,
        tbt_s: float = 0.0,
        served: Served | None = None,
        has_tokens: bool = True,
    ) -> None:
        """It has ended, however. Fine for one that is not known. `tbt_s`: time between its tokens; 0: not known."""
        work = self._workload.finish(request_id, now_s=now_s, tbt_s=tbt_s, has_tokens=has_tokens)
        costs = self._costs.get(work.prefill) if work is not None else None
        if work is None or costs is None or served is None:
            return
        prefill_s = costs.measured.prefill_s(work.num_prompt_tokens, served.num_reused_tokens)
        costs.correction.observe(prefill_s, served.prefill_s)
        self._table.set_cost(work.prefill, costs.corrected())

    def expire(self, *, now_s: float) -> list[Work]:
        """Forget what never ended."""
        return self._workload.expire(now_s=now_s)
