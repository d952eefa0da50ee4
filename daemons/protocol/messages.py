"""The closed union each server understands, and the decoders, built once at import.

Handlers dispatch with `match` ending in `assert_never`, so mypy finds a forgotten case.
"""

import msgspec

from daemons.protocol.base import Ok, Ping
from daemons.protocol.block import (
    BadReplica,
    ForgetNames,
    FreeBlocks,
    Put,
    PutReply,
    RememberClear,
    SuspectNode,
)
from daemons.protocol.cache import (
    CacheStat,
    CacheStatReply,
    ClearBlocks,
    ClearBlocksReply,
    FlushBlocks,
    FlushBlocksReply,
    ListBlocks,
    ListBlocksReply,
)
from daemons.protocol.event import Event, ReadEvents, ReadEventsReply
from daemons.protocol.failure import Failure
from daemons.protocol.key import AllowedKeys
from daemons.protocol.lookup import Locate, LocateReply, Match, MatchReply
from daemons.protocol.node import (
    Beat,
    Hello,
    HelloReply,
    Join,
    JoinReply,
    Leave,
    ListModels,
    ListModelsReply,
    ListNodes,
    ListNodesReply,
)
from daemons.protocol.objects import (
    DeleteNames,
    DeleteNamesReply,
    ExistNames,
    ExistNamesReply,
    ListNames,
    ListNamesReply,
    LocateNames,
    LocateNamesReply,
    ReleaseNames,
    ReserveNames,
    ReserveNamesReply,
    StatNames,
    StatNamesReply,
)
from daemons.protocol.pin import HoldPins, PinBlocks, PinBlocksReply
from daemons.protocol.probe import DataProbe, DataProbeReply
from daemons.protocol.replication import (
    AwaitReplicas,
    AwaitReplicasReply,
    CopyBlocks,
    CopyFailed,
    DrainNode,
    MoveBlocks,
    RememberWanted,
    ReplicateBlocks,
    ReplicateReply,
)
from daemons.protocol.report import Report, ReportReply
from daemons.protocol.request import (
    Cancel,
    Generate,
    GenerateReply,
    LayersReady,
    Plan,
    Prefill,
    PrefillReply,
    PrefillStarted,
    Pulled,
    RequestDone,
    Schedule,
    Tokens,
)
from daemons.protocol.request_list import ListRequests, ListRequestsReply
from daemons.protocol.segment import (
    AddSegment,
    ListSegments,
    ListSegmentsReply,
    RemoveSegment,
    SegmentReply,
)
from daemons.protocol.tenant import (
    ListPoolUsage,
    ListPoolUsageReply,
    RefuseTenants,
    SetPoolQuota,
)
from daemons.protocol.tiers import AdoptObjects, Stage, StageAhead, StageReply, Unstage, WriteDown

AnyServer = Hello | Ping | DataProbe
NameRequest = (
    ReserveNames | ReleaseNames | LocateNames | ExistNames | DeleteNames | ListNames | StatNames
)
MasterRequest = (
    AnyServer
    | Join
    | Beat
    | Leave
    | Report
    | BadReplica
    | SuspectNode
    | CopyFailed
    | AwaitReplicas
    | ReplicateBlocks
    | MoveBlocks
    | DrainNode
    | SetPoolQuota
    | ListPoolUsage
    | Schedule
    | RequestDone
    | Match
    | Locate
    | ListBlocks
    | ClearBlocks
    | PinBlocks
    | FlushBlocks
    | CacheStat
    | NameRequest
    | ListNodes
    | ListModels
    | ListRequests
    | ReadEvents
)
SegmentRequest = ListSegments | AddSegment | RemoveSegment
CachenodeRequest = AnyServer | Put | Stage | Unstage | SegmentRequest
PrefillRequest = AnyServer | Prefill | Pulled | Cancel
DecodeRequest = AnyServer | Generate | Cancel

Request = MasterRequest | CachenodeRequest | PrefillRequest | DecodeRequest
Reply = (
    Ok
    | Failure
    | HelloReply
    | JoinReply
    | ReportReply
    | Plan
    | MatchReply
    | LocateReply
    | ListBlocksReply
    | ClearBlocksReply
    | PinBlocksReply
    | FlushBlocksReply
    | CacheStatReply
    | ReserveNamesReply
    | LocateNamesReply
    | ExistNamesReply
    | DeleteNamesReply
    | ListNamesReply
    | StatNamesReply
    | ListNodesReply
    | ListModelsReply
    | ListRequestsReply
    | ReadEventsReply
    | ReplicateReply
    | ListPoolUsageReply
    | AwaitReplicasReply
    | PutReply
    | StageReply
    | ListSegmentsReply
    | SegmentReply
    | DataProbeReply
    | GenerateReply
    | PrefillReply
)
Part = Tokens | PrefillStarted | LayersReady
Notice = (
    FreeBlocks
    | RememberClear
    | ForgetNames
    | BadReplica
    | CopyBlocks
    | RememberWanted
    | StageAhead
    | WriteDown
    | AdoptObjects
    | HoldPins
    | RefuseTenants
    | AllowedKeys
)
Incoming = Reply | Part | Notice
"""What a client can receive on its connection."""

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_incoming = msgspec.msgpack.Decoder(Incoming).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
