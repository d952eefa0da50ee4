"""What an operator asks of a cluster's master: nodes, models, blocks, requests, events. One request at a time.

Every method raises the family of McError that the master answered with, or Unavailable when it does not answer.
Only `clear_blocks`, `flush_blocks`, `pin_blocks`, `replicate_blocks`, `move_blocks`, `drain_node` and
`set_pool_quota` change anything.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from daemons.client.identity import open_client_identity
from daemons.core.errors import ProtocolError
from daemons.core.ids import BlockHash, Epoch, NodeId
from daemons.protocol.address import address_of
from daemons.protocol.base import Message, Ok
from daemons.protocol.block import BlockFilter, BlockLocation, Tier
from daemons.protocol.cache import (
    CacheStat,
    CacheStatReply,
    ClearBlocks,
    ClearBlocksReply,
    FlushBlocks,
    FlushBlocksReply,
    ListBlocks,
    ListBlocksReply,
    ListedBlock,
)
from daemons.protocol.event import ReadEvents, ReadEventsReply
from daemons.protocol.lookup import Locate, LocateReply
from daemons.protocol.node import (
    Leave,
    ListModels,
    ListModelsReply,
    ListNodes,
    ListNodesReply,
    ModelDescription,
)
from daemons.protocol.objects import NamespaceStat, StatNames, StatNamesReply
from daemons.protocol.pin import PinBlocks, PinBlocksReply, PinLevel
from daemons.protocol.replication import DrainNode, MoveBlocks, ReplicateBlocks, ReplicateReply
from daemons.protocol.request_list import ListedRequest, ListRequests, ListRequestsReply
from daemons.protocol.tenant import ListPoolUsage, ListPoolUsageReply, PoolUsage, SetPoolQuota
from daemons.rpc import SyncClient

PAGE_BLOCKS = 1000

ReplyType = TypeVar("ReplyType", bound=Message)


class ClusterClient:
    """A connection to the master, made on first use. `key_file` is needed where the master has keys: `master` is its
    endpoint then, with # and its public key.
    """

    def __init__(
        self, master: str, timeout_s: float = 5.0, key_file: str | Path | None = None
    ) -> None:
        self.master = address_of(master)
        self.identity = open_client_identity(key_file) if "#" in master else None
        self._client = SyncClient(master, timeout_s, self.identity)

    def nodes(self) -> ListNodesReply:
        """Every node the master knows, and the master itself."""
        return self._ask(ListNodes(), ListNodesReply)

    def models(self) -> list[ModelDescription]:
        """What the live instances serve; one entry per namespace."""
        return self._ask(ListModels(), ListModelsReply).models

    def cache_stat(self) -> CacheStatReply:
        return self._ask(CacheStat(), CacheStatReply)

    def namespaces(self) -> list[NamespaceStat]:
        """Those that hold objects."""
        return self._ask(StatNames(), StatNamesReply).namespaces

    def blocks(self, chosen: BlockFilter, limit: int | None = None) -> Iterator[ListedBlock]:
        """Pages through the directory; blocks that come or go meanwhile may be missed or not."""
        after: BlockHash | None = None
        left = limit
        while left is None or left > 0:
            page_blocks = PAGE_BLOCKS if left is None else min(left, PAGE_BLOCKS)
            page = self._ask(
                ListBlocks(filter=chosen, after=after, limit=page_blocks), ListBlocksReply
            )
            yield from page.blocks
            if not page.has_more or not page.blocks:
                return
            after = page.blocks[-1].meta.hash
            if left is not None:
                left -= len(page.blocks)

    def locate(self, hashes: Sequence[BlockHash]) -> list[list[BlockLocation]]:
        """Every replica of each block, in order. Only looks: no lease, no recency."""
        return self._ask(Locate(hashes=list(hashes), lease_ms=0), LocateReply).unpack()

    def locate_all(
        self, hashes: Sequence[BlockHash]
    ) -> tuple[list[list[BlockLocation]], dict[int, list[NodeId]]]:
        """The same, and by index the instances that hold the block in their KV arenas."""
        asked = Locate(hashes=list(hashes), lease_ms=0, wants_devices=True)
        reply = self._ask(asked, LocateReply)
        return reply.unpack(), reply.devices

    def clear_blocks(self, chosen: BlockFilter, timeout_s: float = 30.0) -> ClearBlocksReply:
        """Delete what the filter matches; answered when the nodes freed it, or at the deadline."""
        return self._ask(ClearBlocks(filter=chosen), ClearBlocksReply, timeout_s)

    def flush_blocks(
        self, chosen: BlockFilter, *, to: Tier = "ssd", evict: bool = False
    ) -> FlushBlocksReply:
        """Have the nodes write what the filter matches to a lower tier; ask again to see how far they are."""
        return self._ask(FlushBlocks(filter=chosen, to=to, evict=evict), FlushBlocksReply)

    def pin_blocks(
        self, hashes: Sequence[BlockHash], level: PinLevel, ttl_s: float = 1.0
    ) -> PinBlocksReply:
        """Pin these and all before them, or with "none" end their pins."""
        message = PinBlocks(hashes=list(hashes), level=level, ttl_ms=max(1, round(ttl_s * 1000)))
        return self._ask(message, PinBlocksReply)

    def replicate_blocks(
        self, chosen: BlockFilter, count: int, prefer: Sequence[NodeId] = ()
    ) -> ReplicateReply:
        """Have so many replicas of what the filter matches; copies are made in the background. Say it again to see."""
        message = ReplicateBlocks(filter=chosen, count=count, prefer=list(prefer))
        return self._ask(message, ReplicateReply)

    def move_blocks(self, chosen: BlockFilter, to: NodeId) -> ReplicateReply:
        """Copy what the filter matches to a node, and free it where it was, in the background."""
        return self._ask(MoveBlocks(filter=chosen, to=to), ReplicateReply)

    def remove_node(self, node: NodeId, epoch: Epoch) -> None:
        """Say goodbye for a life of it that is dead; one that lives joins again."""
        self._ask(Leave(node=node, epoch=epoch), Ok)

    def drain_node(self, node: NodeId, *, is_draining: bool) -> None:
        """Begin or end it; `nodes` says how far it is."""
        self._ask(DrainNode(node=node, is_draining=is_draining), Ok)

    def set_pool_quota(self, tenant: str, num_bytes: int) -> None:
        """Of the DRAM of all nodes together; 0 ends it."""
        self._ask(SetPoolQuota(tenant=tenant, num_bytes=num_bytes), Ok)

    def pool_usage(self) -> list[PoolUsage]:
        """Of tenants that hold something, or have a quota."""
        return self._ask(ListPoolUsage(), ListPoolUsageReply).tenants

    def requests(self, limit: int = 50) -> list[ListedRequest]:
        """The most recent plans, newest first."""
        return self._ask(ListRequests(limit=limit), ListRequestsReply).requests

    def read_events(self, wanted: ReadEvents) -> ReadEventsReply:
        """One page of the recent past."""
        return self._ask(wanted, ReadEventsReply)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> "ClusterClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(
        self, message: Message, reply_type: type[ReplyType], timeout_s: float | None = None
    ) -> ReplyType:
        reply = self._client.request(message, timeout_s)
        if not isinstance(reply, reply_type):
            raise ProtocolError(
                f"{self.master} answered {type(message).__name__} with {type(reply).__name__}; is it mc-master?"
            )
        return reply
