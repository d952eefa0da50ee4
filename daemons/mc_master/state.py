"""What the handlers share: the tables, the clock, and the three ways out (events, notices, the end of this master)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from daemons.conductor.conductor import Conductor
from daemons.conductor.early_rejection import Objectives
from daemons.conductor.membership import Member, Membership
from daemons.conductor.prefill_placement import Tuning
from daemons.conductor.request_log import RequestLog
from daemons.config.costs import CostsFile
from daemons.config.mc_master import MasterConfig
from daemons.core.ids import BlockHash, Incarnation, NodeId
from daemons.mc_master.event_log import EventLog
from daemons.mc_master.grants import ReplyGrants
from daemons.mc_master.metrics import MasterMetrics
from daemons.protocol.base import Message
from daemons.protocol.node import NodeDescription
from daemons.rpc import Loop
from daemons.store.directory.device_index import DeviceIndex
from daemons.store.directory.directory import Directory

_USES_PER_S: Final = 100
"""Times that are told apart when blocks are used."""


@dataclass(slots=True)
class Outlets:
    """Effects on the world. `notify` tells one member something, False when it cannot be reached."""

    publish: Callable[..., object]
    """Called with any number of events."""
    notify: Callable[[Member, Message], bool]
    step_down: Callable[[int], object]
    """A master of this higher incarnation lived: end this one."""
    greet: Callable[[Member], object]
    """Whatever a member must know before its join is answered."""


@dataclass(slots=True)
class MasterState:
    """One of a master; whoever handles a message may read and change all of it."""

    config: MasterConfig
    incarnation: Incarnation
    description: NodeDescription
    loop: Loop
    out: Outlets
    events: EventLog
    metrics: MasterMetrics
    membership: Membership
    directory: Directory
    conductor: Conductor
    requests: RequestLog
    started_s: float
    directory_path: Path
    """Of what little outlives this process."""
    num_evicted: int = 0
    num_cleared: int = 0
    num_stored: int = 0
    costs: CostsFile = field(default_factory=CostsFile)
    moved_to: dict[tuple[NodeId, BlockHash], NodeId] = field(default_factory=dict)
    """Replicas that were told to go, and where the block is instead."""
    grants: ReplyGrants = field(default_factory=lambda: ReplyGrants(None))
    devices: DeviceIndex = field(default_factory=DeviceIndex)

    def now_s(self) -> float:
        return self.loop.clock()

    def use_s(self) -> float:
        """Now, rounded up to the next step: the time of a use, for the directory.

        A use is one of all blocks before it, too, and who goes up a prefix ends where another in the same step was:
        parts of one prefix that are asked for or reported one after the other do not all walk up to its beginning.
        """
        return math.ceil(self.now_s() * _USES_PER_S) / _USES_PER_S


def tuning_of(config: MasterConfig) -> Tuning:
    section = config.conductor
    return Tuning(
        policy=section.policy,
        seed=section.seed,
        balancing_threshold=section.balancing_threshold,
        may_pull=section.may_pull,
        max_queue_s=section.max_queue_s,
        admission=section.admission,
        objectives=Objectives(section.ttft_slo_s, section.tbt_slo_s, section.shed_from),
    )
