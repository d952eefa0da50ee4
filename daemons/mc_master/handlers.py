"""One handler for all that arrives: by noun to the file that owns it."""

from typing import assert_never

from daemons.core.errors import ProtocolError
from daemons.core.ids import NodeId
from daemons.mc_master.blocks.handlers import BlockHandlers
from daemons.mc_master.names.handlers import ObjectHandlers
from daemons.mc_master.names.keeper import NameKeeper
from daemons.mc_master.nodes.drain_list import DrainList
from daemons.mc_master.nodes.handlers import MembershipHandlers
from daemons.mc_master.replicas.adopting import Adopting
from daemons.mc_master.replicas.awaiting import Awaiting
from daemons.mc_master.replicas.handlers import ReplicationHandlers
from daemons.mc_master.replicas.hot_blocks import HeatHandling
from daemons.mc_master.replicas.replicating import Replicating
from daemons.mc_master.requests import RequestHandlers
from daemons.mc_master.state import MasterState
from daemons.mc_master.tenants.quota_file import QuotaFile
from daemons.mc_master.tenants.quotas import Quotas
from daemons.protocol.base import Ping
from daemons.protocol.block import BadReplica, Put, SuspectNode
from daemons.protocol.cache import CacheStat, ClearBlocks, FlushBlocks, ListBlocks
from daemons.protocol.event import ReadEvents
from daemons.protocol.lookup import Locate, Match
from daemons.protocol.node import Beat, Hello, Join, Leave, ListModels, ListNodes
from daemons.protocol.objects import (
    DeleteNames,
    ExistNames,
    ListNames,
    LocateNames,
    ReleaseNames,
    ReserveNames,
    StatNames,
)
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.pin import PinBlocks
from daemons.protocol.probe import DataProbe
from daemons.protocol.replication import (
    AwaitReplicas,
    CopyFailed,
    DrainNode,
    MoveBlocks,
    ReplicateBlocks,
)
from daemons.protocol.report import Report
from daemons.protocol.request import Cancel, Generate, Prefill, Pulled, RequestDone, Schedule
from daemons.protocol.request_list import ListRequests
from daemons.protocol.segment import AddSegment, ListSegments, RemoveSegment
from daemons.protocol.tenant import ListPoolUsage, SetPoolQuota
from daemons.protocol.tiers import Stage, Unstage
from daemons.rpc import Call


class Handlers:
    """Loop thread only."""

    def __init__(self, state: MasterState, drains: DrainList, quotas: QuotaFile) -> None:
        self._state = state
        self.membership = MembershipHandlers(state)
        self.replicating = Replicating(state)
        self.replication = ReplicationHandlers(state, self.replicating, drains)
        self.membership.drop = self.replicating.on_gone
        self.membership.on_joined.append(self.replication.on_joined)
        self._keeper = NameKeeper(state)
        self.membership.on_gone.append(self._keeper.on_gone)
        self.membership.on_joined.append(self._keeper.on_joined)
        self.adopting = Adopting(state)
        self.membership.on_gone.append(self.adopting.on_gone)
        self.membership.on_joined.append(self.adopting.on_joined)
        self.quotas = Quotas(state, quotas)
        self.membership.on_joined.append(self.quotas.on_joined)
        self.objects = ObjectHandlers(state, self._keeper)
        self.blocks = BlockHandlers(state, self.membership, self._keeper)
        self._awaiting = Awaiting(state, self.replicating.run_once)
        self.blocks.reports.on_sealed = self._on_sealed
        self.heat = HeatHandling(state, self.replicating)
        self.blocks.lookups.on_used = self.heat.used
        self.requests = RequestHandlers(state, self.membership, self.heat.used)

    def reload(self) -> None:
        """The configuration has changed."""
        self.replicating.copies.reload()
        self._keeper.reload()

    def handle(self, call: Call) -> None:
        message = call.message
        match message:  # what comes most often first
            case (
                Match()
                | Report()
                | Locate()
                | BadReplica()
                | ListBlocks()
                | ClearBlocks()
                | FlushBlocks()
                | PinBlocks()
                | CacheStat()
            ):
                self.blocks.handle(call, message)
            case Schedule() | RequestDone() | ListRequests():
                self.requests.handle(call, message)
            case Join() | Beat() | Leave() | SuspectNode() | ListNodes() | ListModels():
                self.membership.handle(call, message)
            case CopyFailed() | ReplicateBlocks() | MoveBlocks() | DrainNode():
                self.replication.handle(call, message)
            case SetPoolQuota() | ListPoolUsage():
                self.quotas.handle(call, message)
            case AwaitReplicas():
                self._awaiting.start(call, message)
            case ReadEvents():
                call.reply(self._state.events.read(message, self._state.incarnation))
            case (
                ReserveNames()
                | ReleaseNames()
                | LocateNames()
                | ExistNames()
                | DeleteNames()
                | ListNames()
                | StatNames()
            ):
                self.objects.handle(call, message)
            case (
                Put()
                | Stage()
                | Unstage()
                | Prefill()
                | Pulled()
                | Generate()
                | Cancel()
                | ListSegments()
                | AddSegment()
                | RemoveSegment()
                | DataProbe()
                | Hello()
                | Ping()
            ):
                raise ProtocolError(f"mc-master does not serve {type(message).__name__}")
            case _:
                assert_never(message)

    def _on_sealed(self, node: NodeId, sealed: SealedBlocks) -> None:
        self.replicating.on_sealed(node, sealed)
        self._awaiting.on_sealed(sealed)
        self.quotas.on_sealed(sealed)

    def on_stall(self, stall_s: float) -> None:
        """This process did not run so long: what readers and writers hold does not end for that."""
        now_s, directory = self._state.now_s(), self._state.directory
        directory.leases.extend(stall_s, now_s=now_s)
        directory.pins.extend(stall_s, now_s=now_s)
        self._keeper.names.extend(stall_s, now_s=now_s)

    def tick(self) -> None:
        """Once per beat interval."""
        self.membership.tick()
        self.blocks.tick()
        self._keeper.tick()
        self.quotas.tick()
        self.requests.tick()
