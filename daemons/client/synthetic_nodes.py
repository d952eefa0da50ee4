"""Cache nodes that exist on the wire alone, to measure a master: they join, beat, report, and free what they are told.

Nobody may read their blocks. Everything turns on one loop, together with the look-ups that are measured beside them.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from daemons.core.errors import McError, ProtocolError, Unavailable
from daemons.core.ids import BlockHash, Epoch, HostId, Incarnation, NodeId, new_epoch
from daemons.protocol.base import Message
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.messages import Reply
from daemons.protocol.name_hash import name_key
from daemons.protocol.node import Beat, Join, JoinReply, NodeDescription
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report, ReportReply
from daemons.protocol.segment import DataAddress, RegionRef, SegmentDescription
from daemons.rpc import Channel, Loop
from daemons.store.directory.object_rows import OBJECT_MODEL

BLOCK_BYTES: Final = 4096
CHAIN_BLOCKS: Final = 250
"""Blocks of one prefix; a report does not end with one."""
NAMESPACE: Final = b"mcctl bench mstr"
_TIMEOUT_S: Final = 300.0
_BEAT_S: Final = 0.25
_MIX: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835
_MASK: Final = (1 << 128) - 1

ReplyType = TypeVar("ReplyType", bound=Message)


def block_hash(number: int) -> BlockHash:
    """Distinct for distinct numbers."""
    return BlockHash((((number + 1) * _MIX) & _MASK).to_bytes(16, "big"))


def chain(number: int) -> list[BlockHash]:
    """The hashes of one whole prefix."""
    return [block_hash(number * CHAIN_BLOCKS + depth) for depth in range(CHAIN_BLOCKS)]


def sealed_block(number: int) -> SealedBlock:
    depth = number % CHAIN_BLOCKS
    parent = block_hash(number - 1) if depth else BlockHash(NAMESPACE)
    meta = BlockMeta(
        hash=block_hash(number),
        parent=parent,
        namespace=NAMESPACE,
        depth=depth,
        num_tokens=64,
        model="synthetic",
    )
    return _sealed(meta, number)


def sealed_object(number: int, name: bytes) -> SealedBlock:
    """A small named object."""
    meta = BlockMeta(
        hash=name_key(NAMESPACE, name),
        parent=BlockHash(NAMESPACE),
        namespace=NAMESPACE,
        depth=0,
        num_tokens=0,
        model=OBJECT_MODEL,
        name=name,
        value_bytes=1,
    )
    return _sealed(meta, number)


def _sealed(meta: BlockMeta, number: int) -> SealedBlock:
    return SealedBlock(
        meta=meta,
        offset=number * BLOCK_BYTES,
        length=BLOCK_BYTES,
        trailer_bytes=64,
        version=1,
        seal_checksum=int.from_bytes(meta.hash[:8], "big"),
        num_layers=4,
    )


@dataclass(slots=True)
class SyntheticNode:
    """`max_blocks` is how many it says it has room for; `to_free` were named as victims by the master."""

    node: NodeId
    channel: Channel
    max_blocks: int
    epoch: Epoch = field(default_factory=new_epoch)
    num_reports: int = 0
    num_blocks: int = 0
    to_free: list[BlockHash] = field(default_factory=list)
    is_alive: bool = True
    refused: McError | None = None

    def report(self, sealed: SealedBlocks) -> Report:
        freed, self.to_free = self.to_free, []
        self.num_reports += 1
        self.num_blocks += len(sealed) - len(freed)
        return Report(
            node=self.node,
            epoch=self.epoch,
            sequence=self.num_reports,
            sealed=sealed,
            freed=freed,
            used_bytes=max(0, self.num_blocks) * BLOCK_BYTES,
            capacity_bytes=self.max_blocks * BLOCK_BYTES,
        )


class SyntheticNodes:
    """One thread. Every wait ends with Unavailable after a minute."""

    def __init__(self, master: str) -> None:
        self.loop = Loop()
        self._master = master
        self._nodes: list[SyntheticNode] = []
        self._reader = Channel(self.loop, master)
        self.loop.every(_BEAT_S, self._beat)

    def join(self, name: str, max_blocks: int) -> SyntheticNode:
        node = SyntheticNode(NodeId(name), Channel(self.loop, self._master), max_blocks)
        join = Join(node=_described(node), incarnation_seen=Incarnation(0))
        self._ask(node.channel, [join], JoinReply)
        self._nodes.append(node)
        return node

    def put(self, node: SyntheticNode, numbers: range, batch: int) -> None:
        """Report these blocks, and free what the master names; the next report is made while one is under way."""
        for start in range(numbers.start, numbers.stop, batch):
            part = range(start, min(start + batch, numbers.stop))
            self.put_blocks(node, SealedBlocks.pack(map(sealed_block, part)))
        self.settle(node)

    def put_blocks(self, node: SyntheticNode, sealed: SealedBlocks) -> None:
        """Sent when the report before it is answered."""
        self.settle(node)
        node.channel.request(
            node.report(sealed),
            timeout_s=_TIMEOUT_S,
            on_reply=lambda reply: self._obey(node, reply),
        )
        self.loop.run_once(0.0)

    def settle(self, node: SyntheticNode) -> None:
        """Wait for the answer to what was reported."""
        if not self.loop.run_until(lambda: not node.channel.num_pending, _TIMEOUT_S):
            raise Unavailable(f"the master did not answer a report within {_TIMEOUT_S:g} s")
        if node.refused is not None:
            raise node.refused

    def ask_all(
        self, messages: Sequence[Message], reply_type: type[ReplyType], depth: int = 4
    ) -> list[ReplyType]:
        """By one client that has `depth` requests under way at a time."""
        return self._ask(self._reader, messages, reply_type, depth)

    def time_of(self, message: Message, reply_type: type[ReplyType]) -> float:
        """Seconds of one request, as a client with one thread makes it."""
        started_s = time.perf_counter()
        reply = self._reader.call(message, timeout_s=_TIMEOUT_S)
        took_s = time.perf_counter() - started_s
        self._check(reply, reply_type)
        return took_s

    def rest(self, seconds: float) -> None:
        """Only beat."""
        self.loop.run_until(lambda: False, seconds)

    def kill(self, node: SyntheticNode) -> None:
        """As if its host had lost power: not a word any more."""
        node.is_alive = False
        node.channel.close()

    def close(self) -> None:
        for node in self._nodes:
            node.channel.close()
        self._reader.close()
        self.loop.close()

    def _beat(self) -> None:
        for node in self._nodes:
            if node.is_alive and not node.channel.num_pending:
                beat = Beat(node=node.node, epoch=node.epoch)
                node.channel.request(beat, timeout_s=_TIMEOUT_S, on_reply=lambda _: None)

    def _obey(self, node: SyntheticNode, reply: Reply | McError) -> None:
        if isinstance(reply, ReportReply) and not reply.announce:
            node.to_free += reply.victims
        elif isinstance(reply, McError):
            node.refused = reply
        else:
            node.refused = ProtocolError(f"a report of {node.node} was answered with {reply!r}")

    def _ask(
        self,
        channel: Channel,
        messages: Sequence[Message],
        reply_type: type[ReplyType],
        depth: int = 1,
    ) -> list[ReplyType]:
        replies: list[Reply | McError] = []
        for sent, message in enumerate(messages, 1):
            channel.request(message, timeout_s=_TIMEOUT_S, on_reply=replies.append)
            self._until(lambda sent=sent: sent - len(replies) < depth)  # type: ignore[misc]  # bound now
        self._until(lambda: len(replies) == len(messages))
        return [self._check(reply, reply_type) for reply in replies]

    def _check(self, reply: Reply | McError, reply_type: type[ReplyType]) -> ReplyType:
        if isinstance(reply, McError):
            raise reply
        if not isinstance(reply, reply_type):
            raise ProtocolError(f"{self._master} answered with {type(reply).__name__}")
        return reply

    def _until(self, is_done: Callable[[], bool]) -> None:
        if not self.loop.run_until(is_done, _TIMEOUT_S):
            raise Unavailable(f"the master did not answer within {_TIMEOUT_S:g} s")


def _described(node: SyntheticNode) -> NodeDescription:
    host = HostId(f"host-of-{node.node}")
    address = DataAddress(host_id=host, unix_path="", tcp="127.0.0.1:9", epoch=node.epoch)
    size_bytes = node.max_blocks * BLOCK_BYTES
    region = RegionRef(address=address, region_id=1, size_bytes=size_bytes)
    return NodeDescription(
        node=node.node,
        role="cachenode",
        host=socket.gethostname(),
        host_id=host,
        epoch=node.epoch,
        control="tcp://127.0.0.1:9",
        pid=os.getpid(),
        software="bench",
        data=address,
        segments=[SegmentDescription(region=region, path="", capacity_bytes=size_bytes)],
    )
