"""Putting objects: names are reserved at the master, nodes pull the blocks, the object's own block comes last.

A large value is cut into chunks spread over the nodes; until the manifest is sealed nobody finds any of it, and chunks
without one are freed after a while. Small values of one call go to one node in one message.
"""

from collections.abc import Sequence
from typing import Final

from daemons.client.objects.parts import Item, Part, PartMaker
from daemons.client.objects.reservations import (
    PUT_TIMEOUT_S,
    RETRY_S,
    IsSame,
    Reservations,
    overtaken,
    shown,
)
from daemons.client.objects.source import SourceMemory
from daemons.client.objects.steps import Pause, Steps, ask_nodes
from daemons.core.errors import (
    Exhausted,
    McError,
    TransferError,
    Unavailable,
)
from daemons.core.ids import BlockHash, new_put_id
from daemons.core.units import MIB, format_size
from daemons.protocol.address import is_loopback
from daemons.protocol.block import BlockLocation, Put, PutReply
from daemons.protocol.messages import Reply

_ONE_NODE_BYTES: Final = 8 * MIB
"""Calls of less than this go to one node: one message instead of several."""
_MAX_MESSAGE_BLOCKS: Final = 256
_MAX_MESSAGE_BYTES: Final = 1024 * MIB
_BIND_HOST: Final = "; it must reach this process at its bind_host (--bind-host of mcctl cache put)"


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
        self._names = Reservations(namespace, is_same, replaces=replaces, timeout_s=timeout_s)
        self._maker: PartMaker | None = None
        self._is_unanswered = False

    def run(self, items: Sequence[Item]) -> Steps[None]:
        """Every item has its outcome afterwards."""
        num_bytes = sum([item.value.nbytes for item in items])
        self._maker = maker = PartMaker(self._memory, self._namespace, num_bytes)
        try:
            left = list(items)
            while left:
                asked, left = left, (yield from self._names.reserve(left, maker))
                # What is ours goes first: others wait for it, and what is left may wait for them.
                yield from self._put_reserved(
                    [item for item in asked if item.version and item.outcome is None], maker
                )
        except McError as error:
            for item in items:
                item.outcome = item.outcome or error
        finally:
            yield from self._give_back(items)

    def _put_reserved(self, items: Sequence[Item], maker: PartMaker) -> Steps[None]:
        first = [
            part for item in items for part in maker.first_parts(item, self._names.chunk_bytes)
        ]
        yield from self._put_parts(first)
        cut = [item for item in items if item.outcome is None and item.chunks]
        if cut:
            yield from self._put_parts([maker.manifest(item) for item in cut])

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
            if len(full) >= len(self._names.targets):
                yield Pause(max(RETRY_S, min(wait_s, 0.5)))
                yield from self._names.renew()
                full.clear()

    def _is_worth_waiting(self, left: Sequence[Part], wait_s: float) -> bool:
        return not self._names.is_late(wait_s) and all(
            isinstance(part.why, Exhausted | Unavailable | TransferError) for part in left
        )

    def _put_round(self, parts: Sequence[Part], full: set[str]) -> Steps[None]:
        """Each part once, at a node that has not refused in this round; several messages to a node one by one."""
        queues = self._share(parts, full)
        while any(queues.values()):
            if self._names.is_renewal_due:
                yield from self._names.renew()
                queues = {control: _of_ours(queue) for control, queue in queues.items()}
                if not any(queues.values()):
                    return
            sent = [(control, _batch(queue)) for control, queue in queues.items() if queue]
            messages = [(control, _message(batch)) for control, batch in sent]
            was_unanswered, self._is_unanswered = self._is_unanswered, True
            replies = yield from ask_nodes(messages, min(PUT_TIMEOUT_S, self._names.left_s()))
            self._is_unanswered = was_unanswered
            for (control, batch), reply in zip(sent, replies, strict=True):
                self._heard(control, batch, reply, full)

    def _share(self, parts: Sequence[Part], full: set[str]) -> dict[str, list[Part]]:
        """By bytes over the nodes; all to the best one where there is little to move."""
        controls = [t.control for t in self._names.targets if t.control not in full]
        controls = controls or [t.control for t in self._names.targets]
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
                part.item.outcome = overtaken(part.item)
            elif status == "failed" and part.is_inline:
                part.why = self._outline(part, control)
            elif status == "failed":
                part.why = TransferError(
                    f"{control} could not pull {shown(part.item.name)}: {reply.why}"
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
        if isinstance(why, Unavailable) and self._names.is_late():
            # Of the last try, which had what was left of the time: who asked knows the whole of it alone.
            return Unavailable(
                f"{shown(part.item.name)} could not be put within {self._names.timeout_s:g} s; "
                f"the last try: {why.message}",
                retry_after_ms=why.retry_after_ms,
            )
        if not isinstance(why, Exhausted):
            return why
        return Exhausted(
            f"no room for {shown(part.item.name)} of {format_size(part.item.value.nbytes)} within "
            f"{self._names.timeout_s:g} s; {why.message}",
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
            yield from self._names.release(failed)


def _batch(queue: list[Part]) -> list[Part]:
    """Take the next message's worth off the queue."""
    count = num_bytes = 0
    while count < min(len(queue), _MAX_MESSAGE_BLOCKS) and num_bytes < _MAX_MESSAGE_BYTES:
        num_bytes += queue[count].num_bytes
        count += 1
    batch = queue[:count]
    del queue[:count]
    return batch


def _of_ours(queue: list[Part]) -> list[Part]:
    """Without those of items that another put has overtaken, or whose chunks may be gone."""
    return [part for part in queue if part.item.outcome is None]


def _message(batch: Sequence[Part]) -> Put:
    blocks = [part.block for part in batch]
    return Put(put_id=new_put_id(), blocks=blocks, wants_locations=True)
