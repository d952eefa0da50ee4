"""Who reads the object tier of a node that is out: a store that many machines reach is lost with none of them.

Which nodes have such a tier outlives the master: one that is away when a master starts has the usual time to come back.
"""

import logging
from typing import Final

from daemons.conductor.membership import Member
from daemons.core.ids import NodeId
from daemons.mc_master.nodes.kept_nodes import KeptNodes
from daemons.mc_master.state import MasterState
from daemons.protocol.tiers import AdoptObjects

ADOPT_INTERVAL_S: Final = 0.5
_FILE: Final = "object_nodes"

log = logging.getLogger(__name__)


class Adopting:
    """One adopter for each node that is out. It only reads, so an owner that comes back disturbs nobody."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self._owners = KeptNodes(state.directory_path / _FILE)
        """Nodes that have, or had, an object tier."""
        out_s = state.now_s() + state.config.pool.rebuild_delay_s
        self._due_s = dict.fromkeys(self._owners, out_s)
        """Of those that are away: when they are out."""
        self._adopters: dict[NodeId, NodeId] = {}
        """By owner."""

    def on_gone(self, node: NodeId) -> None:
        """What it read for others somebody else must."""
        now_s = self._state.now_s()
        if node in self._owners:
            self._due_s[node] = now_s + self._state.config.pool.rebuild_delay_s
        for owner in self._owners_of(node):
            del self._adopters[owner]
            self._due_s[owner] = now_s

    def on_joined(self, member: Member) -> None:
        """It reads for itself again; a new life has adopted nobody."""
        node = member.node.node
        self._due_s.pop(node, None)
        adopter = self._adopters.pop(node, None)
        if adopter is not None:
            self._tell(adopter)
        if self._owners_of(node):
            self._tell(node)

    def run_once(self) -> None:
        """Find somebody for those that are out."""
        self._owners.retry()
        able = [
            each
            for each in self._state.membership
            if each.state == "alive" and "object" in each.tiers
        ]
        for each in able:
            self._owners.add(each.node.node)
        now_s = self._state.now_s()
        due = [owner for owner, due_s in self._due_s.items() if due_s <= now_s]
        ready = [each for each in able if not each.is_draining]
        if not ready:
            return
        for owner in due:
            adopter = min(ready, key=lambda each: len(self._owners_of(each.node.node))).node.node
            del self._due_s[owner]
            self._adopters[owner] = adopter
            log.info("object tier adopted owner=%s by=%s", owner, adopter)
            self._tell(adopter)

    def _owners_of(self, adopter: NodeId) -> list[NodeId]:
        return [owner for owner, node in self._adopters.items() if node == adopter]

    def _tell(self, adopter: NodeId) -> None:
        member = self._state.membership.get(adopter)
        if member is not None:
            self._state.out.notify(member, AdoptObjects(nodes=self._owners_of(adopter)))
