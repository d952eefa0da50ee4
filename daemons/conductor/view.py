"""What a decision is made from: the question, an instance as it looks at one moment, and the way it was weighed."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from daemons.conductor.latency import CostModel
from daemons.core.ids import HostId, NodeId, RequestId
from daemons.protocol.node import NodeState

InstanceRole = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One prefill or decode engine. `queue_s`: predicted time until it could begin something new."""

    node: NodeId
    role: InstanceRole
    host_id: HostId
    state: NodeState
    model: str
    namespace: bytes
    cost: CostModel
    queue_s: float = 0.0
    num_requests: int = 0
    """Scheduled here and not yet done, or what it says itself if that is more."""
    capacity_tokens: int = 0
    """KV arena; 0 when unknown, then nothing is refused for it."""
    reserved_tokens: int = 0
    last_chosen: int = 0
    """Serial number of the last plan that named it; 0 when none did."""
    is_reuse_safe: bool = True


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """`matched_tokens`: of the longest prefix in the pool; `local_tokens`: of the part each host holds itself."""

    request_id: RequestId
    model: str
    num_prompt_tokens: int
    max_tokens: int
    matched_tokens: int = 0
    local_tokens: dict[HostId, int] = field(default_factory=dict)
    device_tokens: dict[NodeId, int] = field(default_factory=dict)
    """Of the longest prefix that lies in the KV arena of each instance: it is reused there at once, and only there."""
    exclude: frozenset[NodeId] = frozenset()
    namespace: bytes = b""
    """Empty: of whatever namespace serves the model."""
    fast_tokens: int = 0
    staging_s: float = 0.0
    """Reuse beyond `fast_tokens` lies below DRAM and would be there after so long; 0: none does."""
    expected_tokens: int = 0
    """Of the longest prefix that `expected_on` will have once it has done what was planned there before."""
    expected_on: NodeId | None = None
    tenant: str = ""
    priority: int = 0
    """Higher ones are shed later."""

    @property
    def needed_tokens(self) -> int:
        """KV that the request occupies on a decode instance when it ends."""
        return self.num_prompt_tokens + self.max_tokens

    @property
    def context_tokens(self) -> int:
        """KV that one of its decode steps reads, in the middle of the longest answer."""
        return self.num_prompt_tokens + self.max_tokens // 2


class Option(msgspec.Struct, frozen=True):
    """One instance that was weighed, every term in seconds. `matched_tokens`: what it would reuse; `delay_s`: what its
    work adds to the wait of those behind, where the policy looks at that.

    KV is loaded layer by layer while the layers before are computed, so the longer of the two counts. A struct, as
    each plan makes two dozen of them and a frozen dataclass takes several times as long to make.
    """

    node: NodeId
    queue_s: float
    load_s: float
    prefill_s: float
    matched_tokens: int
    delay_s: float = 0.0
    device_tokens: int = 0
    """Of these, what lies in its own KV arena."""

    @property
    def total_s(self) -> float:
        return self.queue_s + self.work_s

    @property
    def work_s(self) -> float:
        """What the instance is busy for."""
        return max(self.load_s, self.prefill_s)
