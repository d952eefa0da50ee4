"""Names on their way to be put: reserved at the master, held while their put goes on, and given up where it fails."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from daemons.client.objects.format import version_text
from daemons.client.objects.parts import Item, PartMaker
from daemons.client.objects.steps import Pause, Steps, ask_master, ask_patiently, work
from daemons.core.errors import Conflict, Exhausted, McError, Rejected, Unavailable
from daemons.core.units import format_size
from daemons.protocol.base import Ok
from daemons.protocol.block import BlockLocation
from daemons.protocol.objects import (
    NameToReserve,
    ReleaseNames,
    ReservedName,
    ReserveNames,
    ReserveNamesReply,
)
from daemons.protocol.request import PutTarget
from daemons.transfer import host_id

PUT_TIMEOUT_S: Final = 15.0
"""For the answer of a node to one message."""
_RENEW_S: Final = 4.0
_HOLD_S: Final = PUT_TIMEOUT_S + _RENEW_S + 1.0
"""Longer than a put that goes on is ever silent: what is not heard of for so long may lose the chunks it has."""
RETRY_S: Final = 0.02
_TURN_S: Final = 0.05
"""Between two questions of one that waits for its turn."""
_LATER_MS: Final = 500

IsSame = Callable[[BlockLocation, Item], bool]
"""Whether what is sealed there is this value already."""


class Reservations:
    """Of one call, and the time it has. What the master said last of nodes and sizes is for all its items."""

    def __init__(
        self, namespace: bytes, is_same: IsSame, *, replaces: bool, timeout_s: float
    ) -> None:
        self._namespace = namespace
        self._is_same = is_same
        self._replaces = replaces
        self.timeout_s = timeout_s
        self.targets: Sequence[PutTarget] = ()
        self.chunk_bytes = 0
        self._room_bytes: int | None = None
        self._deadline_s = time.monotonic() + timeout_s
        self._renewed_s = 0.0
        self._held: list[Item] = []

    def is_late(self, wait_s: float = 0.0) -> bool:
        """No time for another try after so long."""
        return time.monotonic() + max(wait_s, RETRY_S) >= self._deadline_s

    def left_s(self) -> float:
        return max(0.05, self._deadline_s - time.monotonic())

    def reserve(self, items: Sequence[Item], maker: PartMaker) -> Steps[list[Item]]:
        """Those that are to be asked for again: the others are ours to put now, or have their outcome."""
        reply = yield from self._ask(
            [NameToReserve(name=i.name, value_bytes=i.value.nbytes) for i in items],
            meanwhile=lambda: maker.make_readable(items),
        )
        again: list[tuple[Item, ReservedName]] = []
        for item, reserved in zip(items, reply.names, strict=True):
            if reserved.status == "reserved":
                item.version = reserved.version
                item.outcome = self._too_large(item)
                self._held.append(item)
            elif not (yield from self._take(item, reserved)):
                again.append((item, reserved))
        if not again:
            return []
        if self.is_late():
            for item, reserved in again:
                item.outcome = self._late(item, reserved)
            return []
        if len(again) == len(items):
            waits_long = all(reserved.status == "waits_for_room" for _, reserved in again)
            yield Pause(_TURN_S if waits_long else RETRY_S)
        return [item for item, _ in again]

    def _take(self, item: Item, reserved: ReservedName) -> Steps[bool]:
        """A name that is not ours to put now. False: ask again."""
        match reserved.status:
            case "sealed":
                assert reserved.location is not None
                return (yield from self._compare(item, reserved.location))
            case "unreachable":
                item.outcome = Unavailable(
                    f"{shown(item.name)} is held by nodes that are away; replace it, or wait for them"
                )
            case "lost":
                item.outcome = _lost(item, reserved)
            case "being_written" | "waits_for_room" | "rebuilding":
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
                f"{shown(item.name)} is sealed with other bytes (version {version_text(sealed.version)}); "
                "replace it, or delete it first"
            )
        )
        return True

    def _too_large(self, item: Item) -> McError | None:
        """Said before anything is put: nodes would evict all they have for it, in vain."""
        if self._room_bytes is None or item.value.nbytes <= self._room_bytes:
            return None
        return Exhausted(
            f"{shown(item.name)} of {format_size(item.value.nbytes)} is larger than the whole pool, "
            f"{format_size(self._room_bytes)}; add a cache node or a segment (mcctl segment add), or cut it"
        )

    def _late(self, item: Item, reserved: ReservedName) -> McError:
        if reserved.status == "waits_for_room":
            return Exhausted(
                f"no room for {shown(item.name)} of {format_size(item.value.nbytes)} within "
                f"{self.timeout_s:g} s; it waited for its turn: {reserved.why}",
                retry_after_ms=_LATER_MS,
            )
        return Unavailable(
            f"{shown(item.name)} could not be put within {self.timeout_s:g} s: another client is putting it, or "
            "the master is still hearing what its nodes have"
        )

    def _ask(
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
                takes_turns=True,
            ),
            ReserveNamesReply,
            self.left_s(),
            meanwhile,
        )
        self.targets, self._renewed_s = reply.targets, time.monotonic()
        self.chunk_bytes = self.chunk_bytes or reply.chunk_bytes
        self._room_bytes = reply.room_bytes
        return reply

    @property
    def is_renewal_due(self) -> bool:
        return time.monotonic() - self._renewed_s > _RENEW_S

    def renew(self) -> Steps[None]:
        """Hear which nodes are to be asked now, and that nobody has overtaken us: of all that are not sealed yet."""
        self._held = items = [item for item in self._held if item.outcome is None]
        names = [
            NameToReserve(name=i.name, value_bytes=i.value.nbytes, version=i.version) for i in items
        ]
        try:
            reply = yield from self._ask(names)
        except Unavailable:
            return  # a master that restarts; the nodes go on
        for item, reserved in zip(items, reply.names, strict=True):
            if reserved.status == "lost":
                item.outcome = _lost(item, reserved)

    def release(self, items: Sequence[Item]) -> Steps[None]:
        """Of puts that failed; what is not heard of ends by itself."""
        message = ReleaseNames(
            namespace=self._namespace,
            names=[NameToReserve(name=i.name, value_bytes=0, version=i.version) for i in items],
            num_chunks=[0 if i.has_manifest else len(i.chunks) for i in items],
        )
        try:
            yield from ask_master(message, Ok, 0.5)
        except McError:
            return


def _lost(item: Item, reserved: ReservedName) -> McError:
    return Unavailable(f"{shown(item.name)}: {reserved.why}") if reserved.why else overtaken(item)


def overtaken(item: Item) -> Conflict:
    return Conflict(f"{shown(item.name)} was replaced or deleted while it was put")


def shown(name: bytes) -> str:
    return repr(name)[1:] if len(name) <= 40 else f"{name[:40]!r}..."[1:]
