"""A large cluster under load for measuring decisions: the live Conductor and directory, and prompts that match whole.

What the master does for one request, without its messages. The caller has the clock.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from daemons.conductor.conductor import Conductor
from daemons.conductor.instance_table import InstanceDescription
from daemons.conductor.placement import Placement
from daemons.conductor.prefill_placement import Tuning
from daemons.conductor.view import InstanceRole, PlacementRequest
from daemons.core.ids import BlockHash, HostId, NodeId, RequestId
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.pool import MODEL, SimulatedPool
from daemons.simulation.trace import BLOCK_TOKENS

NUM_PROMPTS = 32
_DECODE_REQUESTS = 8
"""That run on each decode instance, on average."""
_ANSWER_TOKENS = 400
_ARRIVAL_S = 0.001


@dataclass(frozen=True, slots=True)
class CrowdPlan:
    """Half of the instances prefill, half decode; every prompt fills `num_blocks` blocks."""

    num_instances: int
    num_blocks: int
    policy: str = "time"


class Crowd:
    """Every prompt is in the memory of one prefill node, and its first half in that of every eighth node's."""

    def __init__(self, plan: CrowdPlan, profile: HardwareProfile) -> None:
        num_prefills = max(1, plan.num_instances // 2)
        prefills = [NodeId(f"prefill-{number}") for number in range(num_prefills)]
        decodes = [
            NodeId(f"decode-{number}")
            for number in range(max(1, plan.num_instances - num_prefills))
        ]
        self._plan = plan
        self._conductor = Conductor(Tuning(policy=plan.policy))
        roles: list[tuple[InstanceRole, list[NodeId]]] = [
            ("prefill", prefills),
            ("decode", decodes),
        ]
        for role, nodes in roles:
            for node in nodes:
                described = InstanceDescription(node, role, HostId(node), MODEL, b"")
                self._conductor.join(described, profile.cost_model())
        self._pool = SimulatedPool(prefills, NUM_PROMPTS * plan.num_blocks * BLOCK_TOKENS)
        self._prompts = [self._stored(prefills, number) for number in range(NUM_PROMPTS)]
        self._running: deque[RequestId] = deque()
        self._num_kept = _DECODE_REQUESTS * len(decodes)
        self._num_asked = 0
        while len(self._running) < self._num_kept:
            self.decide()

    def match(self) -> int:
        """Only the directory's part: the longest prefix of the next prompt, leased; how many blocks that is."""
        self._num_asked += 1
        hashes = self._prompts[self._num_asked % NUM_PROMPTS]
        directory = self._pool.directory
        return len(directory.match(hashes, now_s=self._now_s(), lease_s=1.0).rows)

    def decide(self) -> Placement:
        """A whole decision for the next prompt: match, weigh, lease, account. The oldest request ends with it."""
        self._num_asked += 1
        now_s, hashes = self._now_s(), self._prompts[self._num_asked % NUM_PROMPTS]
        directory = self._pool.directory
        rows = directory.find_prefix(hashes, now_s=now_s)
        local = directory.leading_by_host(rows, now_s=now_s)
        expected = self._conductor.expected(hashes, len(rows), now_s=now_s)
        request = PlacementRequest(
            request_id=RequestId(str(self._num_asked)),
            model=MODEL,
            num_prompt_tokens=len(hashes) * BLOCK_TOKENS + 1,
            max_tokens=_ANSWER_TOKENS,
            matched_tokens=len(rows) * BLOCK_TOKENS,
            local_tokens={host: count * BLOCK_TOKENS for host, count in local.items()},
            expected_on=None if expected is None else expected[0],
            expected_tokens=0 if expected is None else expected[1] * BLOCK_TOKENS,
        )
        placement = self._conductor.place(request, now_s=now_s)
        placement.explain()  # as the master does, for each plan
        rows = rows[: placement.matched_tokens // BLOCK_TOKENS]
        self._pool.take(rows, len(hashes), placement.prefill.node, now_s)
        self._conductor.account(placement, request, now_s=now_s)
        self._conductor.expect(placement, hashes, len(rows), now_s=now_s)
        self._running.append(request.request_id)
        if len(self._running) > self._num_kept:
            self._conductor.finish(self._running.popleft(), now_s=now_s)
        return placement

    def _now_s(self) -> float:
        return 1.0 + self._num_asked * _ARRIVAL_S

    def _stored(self, prefills: Sequence[NodeId], number: int) -> list[BlockHash]:
        first = number * self._plan.num_blocks
        blocks = range(first, first + self._plan.num_blocks)
        self._pool.store(prefills[number % len(prefills)], blocks, 0, now_s=0.0)
        if number % 8 == 0 and len(prefills) > 1:
            half = blocks[: len(blocks) // 2]
            self._pool.store(prefills[(number + 1) % len(prefills)], half, 0, now_s=0.0)
        return self._pool.hashes(blocks)
