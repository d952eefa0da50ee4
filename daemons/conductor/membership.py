"""Who is in the cluster. Pure: silence is counted in ticks of the caller's timer, never measured in time, so a master
that was itself stopped expires nobody for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from daemons.core.errors import Conflict, Exhausted, Unavailable
from daemons.core.ids import Epoch, HostId, NodeId
from daemons.protocol.block import Tier
from daemons.protocol.cache import TierUsage
from daemons.protocol.node import InstanceLoad, NodeDescription, NodeState

MAX_NODES = 4096
MAX_REPLACED = 8
KEEP_DEAD_TICKS = 1200
"""A dead node is listed for so long, ten minutes at the default interval, then forgotten."""
TRUSTED_TICKS = 10
"""One reader with a bad link must not keep a healthy node suspect."""

MAX_FORGIVEN_TICKS = 12
"""Of one silence: who never speaks again is dead at last, however often the master itself is held up."""

Change = Literal["suspect", "alive", "dead", "forgotten"]


@dataclass(slots=True)
class Member:
    """One life of one node. `peer` is where notices reach it: the connection it last spoke on."""

    node: NodeDescription
    joined_s: float
    heard_s: float
    peer: bytes
    state: NodeState = "alive"
    missed_beats: int = 0
    forgiven_ticks: int = 0
    """Since it was heard last."""
    load: InstanceLoad | None = None
    used_bytes: int = 0
    capacity_bytes: int = 0
    """Both of its DRAM."""
    tiers: dict[Tier, TierUsage] = field(default_factory=dict)
    """Those beside it, as it reported them last."""
    next_sequence: int | None = None
    """Of its reports; None: whatever comes starts a new count."""
    has_old_blocks: bool = False
    """What the directory knows of it is from before; its next report begins anew."""
    is_evicting: bool = False
    next_eviction_s: float = 0.0
    last_chosen: int = 0
    is_draining: bool = False
    """Nothing new goes there."""
    left: tuple[int, int] | None = None
    """Of a draining node, (blocks, bytes) that still need a copy elsewhere; None: not counted yet."""
    left_below: int = 0
    """So many of these blocks are not in its DRAM."""
    left_why: str = ""
    """What holds them up."""
    trusted_ticks: int = 0
    """A beat has just shown readers' doubts to be wrong: so long none is listened to."""
    replaced: tuple[Epoch, ...] = ()
    """Earlier lives of this id: one of them that comes back is a second process under the same name."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What became of a node; `dead` and `forgotten` ones hold nothing any more."""

    member: Member
    change: Change


class Membership:
    """At most MAX_NODES, dead ones included."""

    def __init__(self, suspect_beats: int, dead_beats: int) -> None:
        self.suspect_beats = suspect_beats
        self.dead_beats = max(dead_beats, suspect_beats)
        self._members: dict[NodeId, Member] = {}
        self._by_host: dict[HostId, list[Member]] | None = None
        """Made when asked for, void when somebody comes or goes."""

    def __contains__(self, node: object) -> bool:
        return node in self._members

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, node: NodeId) -> Member:
        return self._members[node]

    def get(self, node: NodeId) -> Member | None:
        return self._members.get(node)

    def on_host(self, host: HostId) -> list[Member]:
        """Dead ones included, in the order they joined."""
        if self._by_host is None:
            self._by_host = {}
            for member in self:
                self._by_host.setdefault(member.node.host_id, []).append(member)
        return self._by_host.get(host, [])

    def join(self, node: NodeDescription, *, peer: bytes, now_s: float) -> Member | None:
        """Add it, in place of the earlier life of the same id, which is returned.

        Raises Exhausted when full, and Conflict for a life that a newer one has replaced, while that one lives: two
        processes of one id would else take each other's place for ever.
        """
        earlier = self._members.get(node.node)
        if earlier is not None and earlier.state != "dead" and node.epoch in earlier.replaced:
            raise Conflict(_taken(node, earlier.node))
        earlier = self._members.pop(node.node, None)
        if earlier is None and len(self._members) >= MAX_NODES:
            dead = next((m.node.node for m in self if m.state == "dead"), None)
            if dead is None:
                raise Exhausted(f"{MAX_NODES} nodes have joined; this master takes no more")
            del self._members[dead]
        member = Member(node=node, joined_s=now_s, heard_s=now_s, peer=peer)
        member.capacity_bytes = sum(segment.capacity_bytes for segment in node.segments)
        if earlier is not None and earlier.node.epoch == node.epoch:
            member.joined_s, member.last_chosen = earlier.joined_s, earlier.last_chosen
            member.load = earlier.load
            member.used_bytes, member.capacity_bytes = earlier.used_bytes, earlier.capacity_bytes
            member.tiers = earlier.tiers
            member.has_old_blocks = earlier.state != "dead"
            member.replaced = earlier.replaced
        elif earlier is not None:
            others = [epoch for epoch in earlier.replaced if epoch != node.epoch]
            member.replaced = (*others, earlier.node.epoch)[-MAX_REPLACED:]
        self._members[node.node] = member
        self._by_host = None
        return earlier

    def hear(
        self, node: NodeId, epoch: int, *, peer: bytes, now_s: float
    ) -> tuple[Member, Transition | None]:
        """A sign of life. Raises Unavailable("join again") for a node, or a life of it, that is not a member."""
        member = self._members.get(node)
        if member is None or member.node.epoch != epoch or member.state == "dead":
            why = "is not known here" if member is None else "is dead or was replaced"
            raise Unavailable(f"node {node} {why}; join again", retry_after_ms=0)
        member.peer = peer
        member.heard_s = now_s
        member.missed_beats = member.forgiven_ticks = 0
        if member.state == "suspect":
            member.state = "alive"
            member.trusted_ticks = TRUSTED_TICKS
            return member, Transition(member, "alive")
        return member, None

    def doubt(self, node: NodeId, epoch: int) -> Transition | None:
        """A reader could not reach this life of it: suspect until its next beat. Readers make nobody dead."""
        member = self._members.get(node)
        if member is None or member.node.epoch != epoch:
            return None
        if member.state != "alive" or member.trusted_ticks > 0:
            return None
        member.state = "suspect"
        return Transition(member, "suspect")

    def leave(self, node: NodeId, epoch: Epoch) -> Member | None:
        """The member that is gone with this; None when it was not this life that had joined."""
        member = self._members.get(node)
        if member is None or member.node.epoch != epoch:
            return None
        self._by_host = None
        return self._members.pop(node)

    def tick(self) -> list[Transition]:
        """One beat interval has passed in which each could have been heard."""
        changes = []
        for member in list(self):
            member.missed_beats += 1
            member.trusted_ticks = max(0, member.trusted_ticks - 1)
            if member.state == "dead":
                if member.missed_beats > KEEP_DEAD_TICKS:
                    del self._members[member.node.node]
                    self._by_host = None
                    changes.append(Transition(member, "forgotten"))
            elif member.missed_beats > self.dead_beats:
                member.state = "dead"
                changes.append(Transition(member, "dead"))
            elif member.state == "alive" and member.missed_beats > self.suspect_beats:
                member.state = "suspect"
                changes.append(Transition(member, "suspect"))
        return changes

    def forgive(self) -> None:
        """We did not listen ourselves: nobody has missed anything, but who was silent for MAX_FORGIVEN_TICKS of it."""
        for member in self:
            if member.state != "dead" and member.forgiven_ticks < MAX_FORGIVEN_TICKS:
                member.forgiven_ticks += 1
                member.missed_beats = 0


def _taken(node: NodeDescription, holder: NodeDescription) -> str:
    return (
        f"node id {node.node!r} belongs to a newer process (pid {holder.pid} on {holder.host}); "
        f"stop it, or give this one (pid {node.pid} on {node.host}) its own `node.id`"
    )
