"""AwaitReplicas: answers a client once what it put is sealed on as many hosts as it asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from daemons.core.errors import Exhausted, NotFound, ProtocolError
from daemons.core.ids import BlockHash
from daemons.mc_master.replicas.copies import domain_of
from daemons.mc_master.state import MasterState
from daemons.protocol.access import namespaces_of
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.replication import MAX_AWAITED, AwaitReplicas, AwaitReplicasReply
from daemons.rpc import Call, Timer

_MAX_CALLS: Final = 1000


@dataclass(slots=True, eq=False)
class _Await:
    call: Call
    message: AwaitReplicas
    missing: dict[BlockHash, int]
    """With the version that is awaited."""
    timer: Timer | None = None


class Awaiting:
    """Loop thread only. `make_copies` is called soon where somebody waits for copies that can be made now."""

    def __init__(self, state: MasterState, make_copies: Callable[[], object]) -> None:
        self._state = state
        self._make_copies = make_copies
        self._is_hurrying = False
        self._awaits: dict[_Await, None] = {}

    def start(self, call: Call, message: AwaitReplicas) -> None:
        """Raises Exhausted, ProtocolError."""
        if len(message.hashes) > MAX_AWAITED or len(message.hashes) != len(message.versions):
            raise ProtocolError(f"a version for each of at most {MAX_AWAITED} hashes is awaited")
        if len(self._awaits) >= _MAX_CALLS:
            raise Exhausted(f"{_MAX_CALLS} puts wait for their replicas", retry_after_ms=1000)
        self._check_own(call, message)
        asked = dict(zip(message.hashes, message.versions, strict=True))
        missing = {h: v for h, v in asked.items() if self._num_domains(h, v) < message.count}
        waiting = _Await(call, message, missing)
        if not missing:
            self._answer(waiting)
            return
        self._awaits[waiting] = None
        self._hurry()
        left_s = call.answer_by_s - self._state.now_s()
        waiting.timer = self._state.loop.call_later(max(0.0, left_s), self._answer, waiting)

    def _check_own(self, call: Call, message: AwaitReplicas) -> None:
        """Those that are not here yet are the client's own, or will never be: nothing is told of them."""
        own, namespace_of = namespaces_of(call.owner), self._state.directory.blocks.namespace_of
        if own is not None and any(
            namespace_of(each) not in (None, *own) for each in message.hashes
        ):
            raise NotFound("no such blocks")

    def on_sealed(self, sealed: SealedBlocks) -> None:
        """The directory knows of these just now."""
        hashes = sealed.hashes() if self._awaits else []
        for waiting in list(self._awaits):
            for block_hash in hashes:
                version = waiting.missing.get(block_hash)
                if version is None:
                    continue
                if self._num_domains(block_hash, version) >= waiting.message.count:
                    del waiting.missing[block_hash]
            if not waiting.missing:
                self._answer(waiting)
            elif not waiting.missing.keys().isdisjoint(hashes):
                self._hurry()

    def _hurry(self) -> None:
        """Once for all that is asked or reported in this turn."""
        if not self._is_hurrying:
            self._is_hurrying = True
            self._state.loop.call_later(0.0, self._copy_now)

    def _copy_now(self) -> None:
        self._is_hurrying = False
        self._make_copies()

    def _answer(self, waiting: _Await) -> None:
        self._awaits.pop(waiting, None)
        if waiting.timer is not None:
            waiting.timer.cancel()
        asked = zip(waiting.message.hashes, waiting.message.versions, strict=True)
        counts = [self._num_domains(block_hash, version) for block_hash, version in asked]
        waiting.call.reply(AwaitReplicasReply(counts=counts))

    def _num_domains(self, block_hash: BlockHash, version: int) -> int:
        """That have this version or a newer one, in any tier."""
        [found] = self._state.directory.locate(
            [block_hash], now_s=self._state.now_s(), lease_s=0
        ).unpack()
        holders = {at.node for at in found if at.version >= version}
        members = (self._state.membership.get(node) for node in holders)
        return len({domain_of(member) for member in members if member is not None})
