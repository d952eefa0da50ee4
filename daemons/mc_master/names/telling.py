"""What cache nodes are told about objects: which versions are dead, which chunks to free, in messages that fit."""

from collections.abc import Sequence
from typing import Final

from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.state import MasterState
from daemons.protocol.block import DeadName, ForgetNames, FreeBlocks

NOTICE_NAMES: Final = 4096


class Telling:
    """Loop thread only."""

    def __init__(self, state: MasterState) -> None:
        self._state = state

    def broadcast(self, dead: Sequence[DeadName], but: NodeId | None = None) -> set[NodeId]:
        """Who was told: every cache node that is not dead."""
        nodes = [
            member.node.node
            for member in self._state.membership
            if member.node.segments and member.state != "dead" and member.node.node != but
        ]
        return {node for node in nodes if self.tell(node, dead)}

    def tell(self, node: NodeId, dead: Sequence[DeadName]) -> bool:
        """False when it is not here, or cannot be reached: it hears of them when it joins."""
        member = self._state.membership.get(node)
        return member is not None and all(
            self._state.out.notify(
                member, ForgetNames(names=list(dead[start : start + NOTICE_NAMES]))
            )
            for start in range(0, len(dead), NOTICE_NAMES)
        )

    def free(self, node: NodeId, hashes: Sequence[BlockHash]) -> None:
        """Chunks have one version only: these need no number."""
        member = self._state.membership.get(node)
        if member is None:
            return
        for start in range(0, len(hashes), NOTICE_NAMES):
            part = list(hashes[start : start + NOTICE_NAMES])
            self._state.out.notify(member, FreeBlocks(hashes=part, is_deletion=True))
