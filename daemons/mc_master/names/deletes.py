"""Deletes under way: each is answered once the nodes that were told have logged it, or before its time ends."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from daemons.core.errors import Exhausted, Unavailable
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.state import MasterState
from daemons.protocol.block import DeadName
from daemons.protocol.objects import DeleteNamesReply
from daemons.rpc import Call, Timer

MAX_DELETES: Final = 64
_LEAST_WAIT_S: Final = 0.05
_ENOUGH_LOGS: Final = 2
"""Nodes that have logged a delete while others could not: it survives the loss of one."""


@dataclass(slots=True, eq=False)
class Delete:
    """One call. `states`: what was under its names."""

    call: Call
    states: bytes
    told: set[NodeId]
    unconfirmed: set[NodeId]
    """Nodes that held it and could not be told, or were given up."""
    left: set[tuple[NodeId, BlockHash]] = field(default_factory=set)
    """What nodes have not logged yet."""
    timer: Timer | None = None


class Deletes:
    """Loop thread only."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self._deletes: list[Delete] = []

    def check_room(self) -> None:
        """Raises Exhausted: before anything is deleted."""
        if len(self._deletes) >= MAX_DELETES:
            raise Exhausted(f"{MAX_DELETES} deletes are running; wait for one", retry_after_ms=100)

    def begin(self, delete: Delete, keys: Iterable[BlockHash]) -> None:
        """The nodes of `told` have been told that these are dead."""
        delete.left = {(node, key) for key in keys for node in delete.told}
        self._deletes.append(delete)
        if not delete.left:
            self._finish(delete)
            return
        left_s = delete.call.answer_by_s - self._state.now_s()
        delete.timer = self._state.loop.call_later(max(_LEAST_WAIT_S, left_s), self._finish, delete)

    def confirm(self, node: NodeId, dead: Iterable[DeadName]) -> None:
        """It has logged these."""
        logged = {(node, name.key) for name in dead}
        for delete in list(self._deletes):
            delete.left -= logged
            if not delete.left:
                self._finish(delete)

    def give_up(self, node: NodeId) -> None:
        """It is stopped or gone; it hears of it when it joins again, from this master or by way of other nodes."""
        for delete in list(self._deletes):
            waited = {each for each in delete.left if each[0] == node}
            if waited:
                delete.left -= waited
                delete.unconfirmed.add(node)
                if not delete.left:
                    self._finish(delete)

    def _finish(self, delete: Delete) -> None:
        if delete not in self._deletes:
            return
        self._deletes.remove(delete)
        if delete.timer is not None:
            delete.timer.cancel()
        late = {node for node, _ in delete.left} | delete.unconfirmed
        num_logged = len(delete.told - late)
        if late and num_logged < _ENOUGH_LOGS:
            delete.call.fail(
                Unavailable(
                    f"not sure to stay deleted: only {num_logged} nodes have logged it, "
                    f"{', '.join(sorted(late))} did not answer; delete again once they are back",
                    retry_after_ms=1000,
                )
            )
            return
        delete.call.reply(DeleteNamesReply(states=delete.states, num_unconfirmed=len(late)))
