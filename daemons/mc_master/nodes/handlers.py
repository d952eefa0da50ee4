"""Join, Beat, Leave, SuspectNode, ListNodes, ListModels, and what follows when a node comes, goes or falls silent."""

import logging
from collections.abc import Callable
from typing import Final, assert_never

from daemons.conductor.instance_table import InstanceDescription
from daemons.conductor.latency import measured
from daemons.conductor.membership import Member, Transition
from daemons.conductor.namespaces import rank_models
from daemons.core.ids import NodeId
from daemons.mc_master.checks import check_join
from daemons.mc_master.state import MasterState
from daemons.protocol.address import address_of
from daemons.protocol.base import Ok
from daemons.protocol.block import SuspectNode
from daemons.protocol.node import (
    Beat,
    Join,
    JoinReply,
    Leave,
    ListedNode,
    ListModels,
    ListModelsReply,
    ListNodes,
    ListNodesReply,
    NodeDescription,
    NodeJoined,
    NodeLeft,
)
from daemons.protocol.segment import regions_of
from daemons.rpc import Call
from daemons.service.bounded_log import BOUNDED

log = logging.getLogger(__name__)

MembershipRequest = Join | Beat | Leave | SuspectNode | ListNodes | ListModels
_MAX_MET: Final = 65_536
FORGIVEN_TICKS = 4
"""After a stall of ours, time for peers to connect again before silence counts."""


class MembershipHandlers:
    """Loop thread only."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self.on_gone: list[Callable[[NodeId], object]] = []
        """Called with a node whose life has ended, once what it held is forgotten."""
        self.on_joined: list[Callable[[Member], object]] = []
        """Called with every node that joined, or joined again, once it was answered."""
        self.drop: Callable[[Member], int] = lambda m: state.directory.drop_node(m.node.node)
        """Called to forget what a node held; how many replicas those were."""
        self._met: set[NodeId] = set()
        """Who knows our incarnation and is not in here has it from another master: our state directory was lost."""
        self._num_forgiven = 0
        self._last_tick_s = state.now_s()

    def handle(self, call: Call, message: MembershipRequest) -> None:
        match message:
            case Join():
                self._join(call, message)
            case Beat():
                self._beat(call, message)
            case Leave():
                self._leave(call, message)
            case SuspectNode():
                self._doubt(call, message)
            case ListNodes():
                self._list_nodes(call)
            case ListModels():
                call.reply(ListModelsReply(models=rank_models(self._state.membership)))
            case _:
                assert_never(message)

    def tick(self) -> None:
        """Once per beat interval."""
        now_s = self._state.now_s()
        interval_s = self._state.config.membership.beat_interval_s
        late_s, self._last_tick_s = now_s - self._last_tick_s - interval_s, now_s
        if late_s > interval_s:
            log.warning("this process did not run seconds=%.1f; nobody is expired for it", late_s)
            self._num_forgiven = FORGIVEN_TICKS
        if self._num_forgiven > 0:
            self._num_forgiven -= 1
            self._state.membership.forgive()
        for transition in self._state.membership.tick():
            self._on_transition(transition)

    def hear(self, call: Call, node: NodeId, epoch: int) -> Member:
        """Any message of a member is a sign of life. Raises Unavailable("join again")."""
        member, transition = self._state.membership.hear(
            node, epoch, peer=call.peer, now_s=self._state.now_s()
        )
        if transition is not None:
            self._on_transition(transition)
        return member

    def put_out(self, member: Member, why: str) -> None:
        """It leaves without having asked to."""
        self._state.membership.leave(member.node.node, member.node.epoch)
        self._gone(member, why)

    def _join(self, call: Call, message: Join) -> None:
        state = self._state
        node = message.node
        check_join(message)
        seen = message.incarnation_seen
        knows_all = len(self._met) < _MAX_MET
        is_of_another = knows_all and seen == state.incarnation and node.node not in self._met
        if seen > state.incarnation or is_of_another:
            # Not obeyed and not admitted: whatever we believe is older than what the cluster knows.
            state.out.step_down(seen)
            return
        if knows_all:
            self._met.add(node.node)
        now_s = state.now_s()
        earlier = state.membership.join(node, peer=call.peer, now_s=now_s)
        is_new = earlier is None or earlier.node.epoch != node.epoch or earlier.state == "dead"
        if earlier is not None and is_new and earlier.state != "dead":
            self._gone(earlier, "replaced by a new process")
        self._tell_conductor(node)
        state.grants.hear(
            node.node,
            node.epoch,
            node.ticks_ms,
            now_s=now_s,
            public=call.owner.public if call.owner else "",
        )
        self._open_slot(node, is_new=is_new)
        state.out.greet(state.membership[node.node])
        interval_ms = int(state.config.membership.beat_interval_s * 1000)
        call.reply(JoinReply(incarnation=state.incarnation, beat_interval_ms=interval_ms))
        if is_new:
            log.info(
                "node joined node=%s role=%s at=%s", node.node, node.role, address_of(node.control)
            )
            state.out.publish(
                NodeJoined(node=node.node, role=node.role, incarnation=state.incarnation)
            )
        member = state.membership.get(node.node)
        assert member is not None, "it has just joined"
        for call_back in self.on_joined:
            call_back(member)

    def _tell_conductor(self, node: NodeDescription) -> None:
        """Of an instance that came, or came again. Also forgets dead ones that membership had no more room for."""
        state = self._state
        state.conductor.keep(state.membership)
        if node.model is None or node.role not in ("prefill", "decode"):
            return
        described = InstanceDescription(
            node=node.node,
            role="prefill" if node.role == "prefill" else "decode",
            host_id=node.host_id,
            model=node.model.name,
            namespace=node.model.namespace,
            capacity_tokens=node.capacity_tokens,
            is_reuse_safe=node.model.is_reuse_safe,
        )
        seed = state.costs.find(node.node, node.model.name)
        state.conductor.join(described, None if seed is None else measured(seed))
        member = state.membership.get(node.node)
        if member is not None and member.load is not None:
            state.conductor.hear(node.node, member.load, now_s=state.now_s())

    def _open_slot(self, node: NodeDescription, *, is_new: bool) -> None:
        """A joining node announces from nothing. One that only joins again keeps its blocks until it begins to."""
        directory = self._state.directory
        if not node.segments:
            directory.drop_node(node.node)
        elif is_new or not directory.is_at(node.node, node.segments[0].region):
            directory.add_node(
                node.node, node.host_id, node.segments[0].region, control=node.control
            )
        if node.segments:
            directory.set_segments(node.node, regions_of(node.segments))
        directory.set_suspect(node.node, False)

    def _beat(self, call: Call, message: Beat) -> None:
        member = self.hear(call, message.node, message.epoch)
        now_s = self._state.now_s()
        self._state.grants.hear(message.node, message.epoch, message.ticks_ms, now_s=now_s)
        if message.load is not None:
            member.load = message.load
            self._state.conductor.hear(message.node, message.load, now_s=now_s)
        call.reply(Ok())

    def _leave(self, call: Call, message: Leave) -> None:
        member = self._state.membership.leave(message.node, message.epoch)
        call.reply(Ok())
        if member is None:
            return
        if member.state != "dead":
            self._gone(member, "left")
        self._state.conductor.leave(message.node, now_s=self._state.now_s())

    def _doubt(self, call: Call, message: SuspectNode) -> None:
        """A reader failed at it; the node's own beats say whether it is dead."""
        transition = self._state.membership.doubt(message.node, message.epoch)
        if transition is not None:
            log.info(
                "a reader failed node=%s why=%r", message.node, message.why[:200], extra=BOUNDED
            )
            self._on_transition(transition)
        call.reply(Ok())

    def _list_nodes(self, call: Call) -> None:
        state = self._state
        now_s = state.now_s()
        nodes = [
            ListedNode(
                node=member.node,
                state=member.state,
                load=member.load,
                used_bytes=member.used_bytes,
                capacity_bytes=member.capacity_bytes,
                num_blocks=state.directory.num_blocks_on(member.node.node),
                joined_s=now_s - member.joined_s,
                last_beat_s=now_s - member.heard_s,
                tiers=member.tiers,
                is_draining=member.is_draining,
                left_blocks=member.left[0] if member.left else None,
                left_bytes=member.left[1] if member.left else 0,
                left_below_blocks=member.left_below if member.left else 0,
                left_why=member.left_why if member.left and member.left[0] else "",
            )
            for member in state.membership
        ]
        call.reply(
            ListNodesReply(incarnation=state.incarnation, nodes=nodes, master=state.description)
        )

    def _on_transition(self, transition: Transition) -> None:
        member = transition.member
        node = member.node.node
        match transition.change:
            case "suspect":
                log.warning("node suspect node=%s missed_beats=%d", node, member.missed_beats)
                self._state.directory.set_suspect(node, True)
                self._state.conductor.set_state(node, "suspect")
            case "alive":
                log.info("node alive again node=%s", node, extra=BOUNDED)
                self._state.directory.set_suspect(node, False)
                self._state.conductor.set_state(node, "alive")
            case "dead":
                self._gone(member, f"dead: {member.missed_beats} beats missed")
            case "forgotten":
                log.info("node forgotten node=%s", node)
                self._state.conductor.leave(node, now_s=self._state.now_s())
            case _:
                assert_never(transition.change)

    def _gone(self, member: Member, why: str) -> None:
        """This life of the node has ended: what it held and what was planned on it is void."""
        state = self._state
        node = member.node.node
        num_replicas = self.drop(member)
        works = state.conductor.die(node, now_s=state.now_s())
        for work in works:
            state.requests.fail(work.request_id, f"node {node} is gone ({why})")
        member.used_bytes = 0
        member.tiers = {}
        state.grants.forget(node)
        for call_back in self.on_gone:
            call_back(node)
        log.info(
            "node gone node=%s why=%r replicas=%d requests=%d", node, why, num_replicas, len(works)
        )
        state.out.publish(
            NodeLeft(node=node, role=member.node.role, why=why, incarnation=state.incarnation)
        )
