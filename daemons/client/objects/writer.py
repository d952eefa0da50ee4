"""Putting objects: names are reserved at the master, nodes pull the blocks, the object's own block comes last.

A large value is cut into chunks spread over the nodes; until the manifest is sealed nobody finds any of it, and chunks
without one are freed after a while. Small values of one call go to one node in one message.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from daemons.client.objects.format import version_text
from daemons.client.objects.parts import Item, Part, PartMaker
from daemons.client.objects.source import SourceMemory
from daemons.client.objects.steps import Pause, Steps, ask_master, ask_nodes, ask_patiently, work
from daemons.core.errors import (
    Conflict,
    Exhausted,
    McError,
    Rejected,
    TransferError,
    Unavailable,
)
from daemons.core.ids import BlockHash, new_put_id
from daemons.core.units import MIB, format_size
from daemons.protocol.address import is_loopback
from daemons.protocol.base import Ok
from daemons.protocol.block import BlockLocation, Put, PutReply
from daemons.protocol.messages import Reply
from daemons.protocol.objects import (
    NameToReserve,
    ReleaseNames,
    ReservedName,
    ReserveNames,
    ReserveNamesReply,
)
from daemons.protocol.request import PutTarget
from daemons.transfer import host_id

_HOLD_S: Final = 15.0
_RENEW_S: Final = 4.0
_RETRY_S: Final = 0.02
_ONE_NODE_BYTES: Final = 8 * MIB
"""Calls of less than this go to one node: one message instead of several."""
_MAX_MESSAGE_BLOCKS: Final = 256
_MAX_MESSAGE_BYTES: Final = 1024 * MIB
_BIND_HOST: Final = "; it must reach this process at its bind_host (--bind-host of mcctl cache put)"
_PUT_TIMEOUT_S: Final = 15.0

IsSame = Callable[[BlockLocation, Item], bool]
"""Whether what is sealed there is this value already."""


class ObjectPut:
    """One call: several items of one namespace. Used once, in one thread."""

    def __init__(
        self,
        memory: SourceMemory,
        namespace: bytes,
        *,
        replaces: bool,
        is_same: IsSame,
        timeout_s: float,
    ) -> None:
        self._memory = memory
        self._namespace = namespace
        self._replaces = replaces
        self._is_same = is_same
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._renewed_s = 0.0
        self._targets: list[PutTarget] = []
        self._chunk_bytes = 0
        self._room_bytes: int | None = None
        self._maker: PartMaker | None = None
        self._is_unanswered = False

    def run(self, items: Sequence[Item]) -> Steps[None]:
        """Every item has its outcome afterwards."""
        num_bytes = sum([item.value.nbytes for item in items])
        self._maker = maker = PartMaker(self._memory, self._namespace, num_bytes)
        try:
            yield from self._reserve(items, maker)
            mine = [item for item in items if item.outcome is None]
            first = [part for item in mine for part in maker.first_parts(item, self._chunk_bytes)]
            yield from self._put_parts(first)
            cut = [item for item in mine if item.outcome is None and item.chunks]
            if cut:
                yield from self._put_parts([maker.manifest(item) for item in cut])
        except McError as error:
            for item in items:
                item.outcome = item.outcome or error
        finally:
            yield from self._give_back(items)

    # -- names ---------------------------------------------------------------------------------------------------

    def _reserve(self, items: Sequence[Item], maker: PartMaker) -> Steps[None]:
        waiting = list(items)
        while waiting:
            reply = yield from self._ask_reserve(
                [NameToReserve(name=i.name, value_bytes=i.value.nbytes) for i in waiting],
                meanwhile=lambda: maker.make_readable(items),
            )
            again = []
            for item, reserved in zip(waiting, reply.names, strict=True):
                if reserved.status == "reserved":
                    item.version = reserved.version
                    item.outcome = self._too_large(item)
                elif not (yield from self._take(item, reserved)):
                    again.append(item)
            if not again:
                return
            if time.monotonic() + _RETRY_S >= self._deadline_s:
                for item in again:
                    item.outcome = self._late(item, reply)
                return
            waiting = again
            yield Pause(_RETRY_S)

    def _take(self, item: Item, reserved: ReservedName) -> Steps[bool]:
        """A name that is not ours to put now. False: ask again."""
        match reserved.status:
            case "sealed":
                assert reserved.location is not None
                return (yield from self._compare(item, reserved.location))
            case "unreachable":
                item.outcome = Unavailable(
                    f"{_shown(item.name)} is held by nodes that are away; replace it, or wait for them"
                )
            case "lost":
                item.outcome = _overtaken(item)
            case "being_written" | "rebuilding":
                return False
        return True

    def _compare(self, item: Item, sealed: BlockLocation) -> Steps[bool]:
        try:
            is_same = yield from work(lambda: self._is_same(sealed, item))
        except Rejected:
            raise  # nobody wants to know any more
        except McError:
            return False  # it is just going, or cannot be read now
        item.outcome = (
            sealed
            if is_same
            else Conflict(
                f"{_shown(item.name)} is sealed with other bytes (version {version_text(sealed.version)}); "
                "replace it, or delete it first"
            )
        )
        return True

    def _too_large(self, item: Item) -> McError | None:
        """Said before anything is put: nodes would evict all they have for it, in vain."""
        if self._room_bytes is None or item.value.nbytes <= self._room_bytes:
            return None
        return Exhausted(
            f"{_shown(item.name)} of {format_size(item.value.nbytes)} is larger than the whole pool, "
            f"{format_size(self._room_bytes)}; add a cache node or a segment (mcctl segment add), or cut it"
        )

    def _late(self, item: Item, reply: ReserveNamesReply) -> McError:
        return Unavailable(
            f"{_shown(item.name)} could not be put within {self._timeout_s:g} s: another client is putting it, or the "
            "master is still hearing what its nodes have"
        )

    def _ask_reserve(
        self,
        names: list[NameToReserve],
        meanwhile: Callable[[], object] | None = None,
    ) -> Steps[ReserveNamesReply]:
        reply = yield from ask_patiently(
            ReserveNames(
                namespace=self._namespace,
                names=names,
                replaces=self._replaces,
                hold_ms=int(_HOLD_S * 1000),
                near=host_id(),
            ),
            ReserveNamesReply,
            self._left_s(),
            meanwhile,
        )
        self._targets, self._renewed_s = reply.targets, time.monotonic()
        self._chunk_bytes = self._chunk_bytes or reply.chunk_bytes
        self._room_bytes = reply.room_bytes
        return reply

    def _renew(self, items: Sequence[Item]) -> Steps[None]:
        """Hear which nodes are to be asked now, and that nobody has overtaken us."""
        names = [
            NameToReserve(name=i.name, value_bytes=i.value.nbytes, version=i.version) for i in items
        ]
        try:
            reply = yield from self._ask_reserve(names)
        except Unavailable:
            return  # a master that restarts; the nodes go on
        for item, reserved in zip(items, reply.names, strict=True):
            if reserved.status == "lost":
                item.outcome = _overtaken(item)

    # -- blocks --------------------------------------------------------------------------------------------------

    def _put_parts(self, parts: Sequence[Part]) -> Steps[None]:
        """Rounds over the nodes that have room, until all are sealed or the time is up."""
        left = list(parts)
        full: set[str] = set()
        while left:
            yield from self._put_round(left, full)
            left = [part for part in left if part.why is not None and part.item.outcome is None]
            if not left:
                break
            wait_s = max(0.0, max((p.why.retry_after_ms or 0) / 1000 for p in left if p.why))
            if not self._is_worth_waiting(left, wait_s):
                for part in left:
                    part.item.outcome = self._explain(part)
                return
            if len(full) >= len(self._targets):
                yield Pause(max(_RETRY_S, min(wait_s, 0.5)))
                yield from self._renew(list({id(p.item): p.item for p in left}.values()))
                full.clear()

    def _is_worth_waiting(self, left: Sequence[Part], wait_s: float) -> bool:
        return not self._is_late(wait_s) and all(
            isinstance(part.why, Exhausted | Unavailable | TransferError) for part in left
        )

    def _put_round(self, parts: Sequence[Part], full: set[str]) -> Steps[None]:
        """Each part once, at a node that has not refused in this round; several messages to a node one by one."""
        queues = self._share(parts, full)
        while any(queues.values()):
            if time.monotonic() - self._renewed_s > _RENEW_S:
                mine = {id(p.item): p.item for p in parts if p.item.version}
                yield from self._renew(list(mine.values()))
            sent = [(control, _batch(queue)) for control, queue in queues.items() if queue]
            messages = [(control, _message(batch)) for control, batch in sent]
            was_unanswered, self._is_unanswered = self._is_unanswered, True
            replies = yield from ask_nodes(messages, min(_PUT_TIMEOUT_S, self._left_s()))
            self._is_unanswered = was_unanswered
            for (control, batch), reply in zip(sent, replies, strict=True):
                self._heard(control, batch, reply, full)

    def _share(self, parts: Sequence[Part], full: set[str]) -> dict[str, list[Part]]:
        """By bytes over the nodes; all to the best one where there is little to move."""
        controls = [t.control for t in self._targets if t.control not in full]
        controls = controls or [t.control for t in self._targets]
        if not controls:
            raise Unavailable("no cache node is up to put to", retry_after_ms=500)
        if sum([part.num_bytes for part in parts]) <= _ONE_NODE_BYTES:
            return {controls[0]: list(parts)}
        queues: dict[str, list[Part]] = {control: [] for control in controls}
        load = dict.fromkeys(controls, 0)
        for part in parts:
            control = min(controls, key=load.__getitem__)
            queues[control].append(part)
            load[control] += part.num_bytes + 1
        return queues

    def _heard(
        self, control: str, batch: Sequence[Part], reply: Reply | McError, full: set[str]
    ) -> None:
        if not isinstance(reply, PutReply):
            error = (
                reply if isinstance(reply, McError) else Unavailable(f"{control} answers nonsense")
            )
            self._is_unanswered = self._is_unanswered or isinstance(error, Unavailable)
            full.add(control)
            for part in batch:
                part.why = error
            return
        found = {location.hash: location for location in reply.locations}
        for part, status in zip(batch, reply.results, strict=True):
            part.why = None
            if status in ("stored", "already_sealed"):
                self._sealed(part, found)
            elif status == "conflict":
                part.item.outcome = _overtaken(part.item)
            elif status == "failed" and part.is_inline:
                part.why = self._outline(part, control)
            elif status == "failed":
                part.why = TransferError(
                    f"{control} could not pull {_shown(part.item.name)}: {reply.why}"
                    f"{'' if is_loopback(control) else _BIND_HOST}"
                )
                full.add(control)
            else:
                part.why = part.refused = Exhausted(
                    f"{control}: {reply.why}", retry_after_ms=reply.retry_after_ms
                )
                full.add(control)

    def _outline(self, part: Part, control: str) -> McError:
        """Why it is to be put again, in another way; what fails here is of this part alone."""
        assert self._maker is not None
        try:
            self._maker.outline(part)
        except McError as error:
            return error
        return TransferError(f"{control} takes no values in messages")

    def _sealed(self, part: Part, found: dict[BlockHash, BlockLocation]) -> None:
        location = found.get(part.block.meta.hash)
        if location is None:
            part.why = Unavailable("it was sealed and is gone already", retry_after_ms=20)
        elif part.index is None:
            part.item.outcome = location
        else:
            part.item.chunks[part.index] = location

    def _explain(self, part: Part) -> McError:
        why = part.why
        assert why is not None
        if isinstance(why, Unavailable):
            why = part.refused or why  # the last try had too little time for an answer
        if isinstance(why, Unavailable) and self._is_late():
            # Of the last try, which had what was left of the time: who asked knows the whole of it alone.
            return Unavailable(
                f"{_shown(part.item.name)} could not be put within {self._timeout_s:g} s; the last try: {why.message}",
                retry_after_ms=why.retry_after_ms,
            )
        if not isinstance(why, Exhausted):
            return why
        return Exhausted(
            f"no room for {_shown(part.item.name)} of {format_size(part.item.value.nbytes)} within "
            f"{self._timeout_s:g} s; {why.message}",
            retry_after_ms=why.retry_after_ms,
        )

    def _give_back(self, items: Sequence[Item]) -> Steps[None]:
        failed = [item for item in items if item.version and isinstance(item.outcome, McError)]
        used = self._maker.used if self._maker is not None else None
        if used is not None:
            if self._is_unanswered:
                self._memory.void(used)
            else:
                self._memory.release(used)
        if failed:
            try:
                message = ReleaseNames(
                    namespace=self._namespace,
                    names=[
                        NameToReserve(name=i.name, value_bytes=0, version=i.version) for i in failed
                    ],
                    num_chunks=[0 if i.has_manifest else len(i.chunks) for i in failed],
                )
                yield from ask_master(message, Ok, 0.5)
            except McError:
                return  # it ends by itself

    def _is_late(self, wait_s: float = 0.0) -> bool:
        """No time for another try after so long."""
        return time.monotonic() + max(wait_s, _RETRY_S) >= self._deadline_s

    def _left_s(self) -> float:
        return max(0.05, self._deadline_s - time.monotonic())


def _batch(queue: list[Part]) -> list[Part]:
    """Take the next message's worth off the queue."""
    count = num_bytes = 0
    while count < min(len(queue), _MAX_MESSAGE_BLOCKS) and num_bytes < _MAX_MESSAGE_BYTES:
        num_bytes += queue[count].num_bytes
        count += 1
    batch = queue[:count]
    del queue[:count]
    return batch


def _message(batch: Sequence[Part]) -> Put:
    blocks = [part.block for part in batch]
    return Put(put_id=new_put_id(), blocks=blocks, wants_locations=True)


def _overtaken(item: Item) -> Conflict:
    return Conflict(f"{_shown(item.name)} was replaced or deleted while it was put")


def _shown(name: bytes) -> str:
    return repr(name)[1:] if len(name) <= 40 else f"{name[:40]!r}..."[1:]
