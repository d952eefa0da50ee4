"""ReplicateBlocks, MoveBlocks, DrainNode, CopyFailed: what operators want of replicas, and what nodes could not do."""

import logging
from typing import Final, assert_never

from daemons.conductor.membership import Member
from daemons.core.errors import NotFound, Rejected
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.nodes.drain_list import DrainList
from daemons.mc_master.replicas.replicating import Replicating
from daemons.mc_master.state import MasterState
from daemons.protocol.base import Ok
from daemons.protocol.block import MAX_REPLICAS, BlockFilter
from daemons.protocol.replication import (
    CopyFailed,
    DrainNode,
    MoveBlocks,
    RememberWanted,
    ReplicateBlocks,
    ReplicateReply,
)
from daemons.rpc import Call
from daemons.store.directory import listing

log = logging.getLogger(__name__)

ReplicationRequest = CopyFailed | ReplicateBlocks | MoveBlocks | DrainNode
MAX_MATCHED: Final = 100_000
"""By one message: the master must not stand still for it."""

_NOTICE_BLOCKS: Final = 4096


class ReplicationHandlers:
    """Loop thread only."""

    def __init__(self, state: MasterState, replicating: Replicating, drains: DrainList) -> None:
        self._state = state
        self._replicating = replicating
        self._drains = drains

    def handle(self, call: Call, message: ReplicationRequest) -> None:
        match message:
            case CopyFailed():
                self._replicating.on_failed(message)
                call.reply(Ok())
            case ReplicateBlocks():
                call.reply(self._replicate(message))
            case MoveBlocks():
                call.reply(self._move(message))
            case DrainNode():
                self._drain(message)
                call.reply(Ok())
            case _:
                assert_never(message)

    def on_joined(self, member: Member) -> None:
        """A drain outlives both master and node."""
        node = member.node.node
        member.is_draining = node in self._drains.nodes
        self._replicating.on_joined(node)

    def _replicate(self, message: ReplicateBlocks) -> ReplicateReply:
        if not 0 <= message.count <= MAX_REPLICAS:
            raise Rejected(f"{message.count} replicas: a block has 1 to {MAX_REPLICAS}")
        for node in message.prefer:
            self._check_target(node)
        holders = self._holders(message.filter)
        hashes = {block_hash for held in holders.values() for block_hash in held}
        directory, prefer = self._state.directory, tuple(message.prefer)
        changed = {h for h in hashes if directory.wanted_of(h) != message.count}
        for block_hash in changed:
            directory.blocks.want(directory.blocks.row_by_hash[block_hash], message.count)
            self._replicating.ask(block_hash, prefer)
        for node, held in holders.items():
            self._remember(node, [h for h in held if h in changed], message.count)
        return ReplicateReply(
            num_blocks=len(hashes),
            num_left=self._replicating.num_short(hashes),
            num_domains=self._replicating.num_domains(),
        )

    def _move(self, message: MoveBlocks) -> ReplicateReply:
        self._check_target(message.to)
        if message.filter.node == message.to:
            raise Rejected(f"{message.to} is where they are; name another node to move them to")
        moving, directory = self._replicating.moving, self._state.directory
        holders = self._holders(message.filter)
        hashes = {block_hash for held in holders.values() for block_hash in held}
        for block_hash in hashes:
            is_there = directory.length_on((message.to, "dram"), block_hash) > 0
            if message.filter.node is not None or not is_there:
                moving.ask(block_hash, message.to, message.filter.node)
        failures = moving.failures(hashes, message.to)
        return ReplicateReply(
            num_blocks=len(hashes),
            num_left=moving.num_of(hashes),
            num_failed=len(failures),
            why=failures[0] if failures else "",
        )

    def _drain(self, message: DrainNode) -> None:
        member = self._state.membership.get(message.node)
        if message.is_draining:
            if member is None or not member.node.segments:
                raise NotFound(
                    f"no cache node {message.node} has joined; `mcctl node list` names all"
                )
            self._drains.add(message.node)
        elif member is None and message.node not in self._drains.nodes:
            raise NotFound(f"no node {message.node}; `mcctl node list` names all")
        else:
            self._drains.remove(message.node)
        log.info("drain node=%s on=%s", message.node, message.is_draining)
        if member is not None:
            member.is_draining, member.left = message.is_draining, None
        self._replicating.count_left()

    def _check_target(self, node: NodeId) -> None:
        member = self._state.membership.get(node)
        if member is None or not member.node.segments:
            raise NotFound(f"no cache node {node} has joined; `mcctl node list` names all")
        if member.is_draining:
            raise Rejected(f"node {node} is draining; name another, or `mcctl node undrain {node}`")
        if member.state == "dead":
            raise Rejected(f"node {node} is dead; name another")

    def _holders(self, wanted: BlockFilter) -> dict[NodeId, list[BlockHash]]:
        """What each node has in any tier."""
        found = listing.select_replicas(self._state.directory, wanted, now_s=self._state.now_s())
        holders: dict[NodeId, dict[BlockHash, None]] = {}
        for (node, _), hashes in found.items():
            holders.setdefault(node, {}).update(dict.fromkeys(hashes))
        most = max(map(len, holders.values()), default=0)
        if most > MAX_MATCHED:
            raise Rejected(
                f"{most} blocks of one node match, {MAX_MATCHED} at a time are the most; narrow it with a hash prefix, "
                "a model or a node, or set pool.replicas for all"
            )
        return {node: list(hashes) for node, hashes in holders.items()}

    def _remember(self, node: NodeId, hashes: list[BlockHash], count: int) -> None:
        member = self._state.membership.get(node)
        assert member is not None, "who holds blocks is a member"
        for start in range(0, len(hashes), _NOTICE_BLOCKS):
            part = hashes[start : start + _NOTICE_BLOCKS]
            self._state.out.notify(member, RememberWanted(hashes=part, count=count))
