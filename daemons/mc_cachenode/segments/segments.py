"""The segments of this node in use: those it began with, those mounted and unmounted while it runs.

A thread takes memory and gives it back; everything else is on the loop's. The list on disk goes first when one is
added and last when one is removed, so that whatever is killed in between the next start goes on with it.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, assert_never

from daemons.config.mc_cachenode import SegmentSection
from daemons.config.segment_cut import MIN_SLAB, SLOT_ALIGN
from daemons.core.errors import Exhausted, McError, NotFound, Rejected, TransferError
from daemons.core.ids import NodeId
from daemons.core.units import format_size
from daemons.mc_cachenode.segments.segment_directory import check_room, mount_of
from daemons.mc_cachenode.segments.segment_leaving import Leaving, LeavingParts
from daemons.mc_cachenode.segments.segment_list import AddedSegment, SegmentList
from daemons.mc_cachenode.segments.storage import (
    Storage,
    StoredSegment,
    added_path,
    added_place,
    keep_index,
)
from daemons.protocol.segment import (
    MAX_SEGMENT_NUMBER,
    SEGMENT_SPAN_BITS,
    AddSegment,
    ListSegments,
    ListSegmentsReply,
    RegionRef,
    RemoveSegment,
    SegmentDescription,
    SegmentReply,
    SegmentState,
    SegmentStatus,
)
from daemons.rpc import Call
from daemons.store.segment.segment import Segment
from daemons.transfer import TransferEngine, prefault_in_background

log = logging.getLogger(__name__)

SegmentRequest = ListSegments | AddSegment | RemoveSegment
_MAX_SEGMENTS: Final = 64
_GRACE_S: Final = 1.0
"""An empty segment stays so long for those who were told just before that a block is in it."""
_RETRY_S: Final = 1.0


class _Stopped(McError):
    """The node ends while memory is taken."""


@dataclass(slots=True)
class _Allocating:
    """`is_new`: asked for in this life of the node; one that fails is forgotten then, else tried at the next start."""

    added: AddedSegment
    is_new: bool
    done_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SegmentParts:
    """What they work with; `on_changed`: others are lent now."""

    node: NodeId
    engine: TransferEngine
    config: SegmentSection
    storage: Storage
    known: SegmentList
    leaving: Callable[[Callable[[Segment], object]], LeavingParts]
    """Made with what is called when a segment is empty."""
    on_changed: Callable[[], object]


class Segments:
    """All of them can be read from when it is made; `start` goes on with what the list on disk says."""

    def __init__(self, parts: SegmentParts) -> None:
        self._parts = parts
        self._storage = parts.storage
        self._replicas = parts.storage.replicas
        self._regions = {
            stored.segment.number: parts.engine.register(stored.segment.memory)
            for stored in parts.storage.all
        }
        self._leaving_parts = parts.leaving(self._on_empty)
        self._loop = self._leaving_parts.loop
        self._allocating: dict[int, _Allocating] = {}
        self._leaving: dict[int, Leaving] = {}
        self._failed: dict[int, tuple[AddedSegment, str]] = {}
        self._prefaults: dict[int, threading.Event] = {}
        self._is_stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, "mc-segment")
        for stored in parts.storage.all:
            if stored.segment.number or not parts.config.prefault:
                # Puts that come before it is through pay for their own page faults.
                self._prefault(stored.segment)

    def start(self) -> None:
        """Once all is wired and the loop is about to run."""
        for added in list(self._parts.known.segments):
            stored = self._storage.added.get(added.number)
            why = self._storage.failed.get(added.number)
            if why is not None:
                self._failed[added.number] = added, why
            elif added.is_leaving and stored is None:
                self._forget(added.number)  # killed when its file was gone
            elif stored is None:
                self._allocate(added)
            elif added.is_leaving:
                self._begin_leaving(stored.segment)

    def handle(self, call: Call, message: SegmentRequest) -> None:
        match message:
            case ListSegments():
                call.reply(ListSegmentsReply(segments=self.states()))
            case AddSegment():
                call.reply(SegmentReply(segment=self._add(message)))
            case RemoveSegment():
                call.reply(SegmentReply(segment=self._remove(message.number)))
            case _:
                assert_never(message)

    def region_of(self, segment: Segment) -> RegionRef:
        return self._regions[segment.number]

    def descriptions(self) -> list[SegmentDescription]:
        """For the master."""
        return [
            SegmentDescription(
                region=self._regions[stored.segment.number],
                path=str(stored.place.path or ""),
                capacity_bytes=stored.segment.slots.capacity_bytes,
                number=stored.segment.number,
            )
            for stored in self._storage.all
        ]

    def states(self) -> list[SegmentState]:
        """By number."""
        mounted = [self._state(stored) for stored in self._storage.all]
        coming = [
            self._state_of(each.added, "allocating", done_bytes=each.done_bytes)
            for each in self._allocating.values()
        ]
        failed = [self._state_of(added, "failed", why=why) for added, why in self._failed.values()]
        return sorted([*mounted, *coming, *failed], key=lambda state: state.number)

    def close(self) -> None:
        """What is still being allocated is given up; the next start begins anew with it."""
        self._is_stopping.set()
        for stop in self._prefaults.values():
            stop.set()
        self._thread.shutdown(wait=True, cancel_futures=True)

    # Mounting.

    def _add(self, message: AddSegment) -> SegmentState:
        """Raises NotFound, Rejected, Exhausted."""
        directory = message.directory or self._parts.config.directory
        if not directory:
            raise Rejected("this node's first segment is in no directory; name a tmpfs by --path")
        size_bytes = message.size_bytes // SLOT_ALIGN * SLOT_ALIGN
        _check_size(size_bytes)
        mount = mount_of(directory)
        check_room(directory, size_bytes)
        known = self._parts.known
        if len(known.segments) >= _MAX_SEGMENTS or known.next_number > MAX_SEGMENT_NUMBER:
            raise Exhausted(f"this node lends {len(known.segments)} further segments; remove some")
        added = AddedSegment(
            number=known.next_number, directory=directory, size_bytes=size_bytes, mount=mount
        )
        known.add(added)
        kept = {each.number for each in known.segments}
        self._failed = {number: each for number, each in self._failed.items() if number in kept}
        self._allocate(added, is_new=True)
        return self._state_of(added, "allocating")

    def _allocate(self, added: AddedSegment, *, is_new: bool = False) -> None:
        allocating = self._allocating[added.number] = _Allocating(added, is_new)

        def progress(done: int, _total: int) -> None:
            allocating.done_bytes = done
            if self._is_stopping.is_set():
                raise _Stopped("the node ends")

        def run() -> None:
            outcome: tuple[StoredSegment, RegionRef] | McError
            try:
                outcome = self._create(added, progress)
            except _Stopped:
                return
            except (McError, OSError) as error:
                outcome = error if isinstance(error, McError) else Exhausted(str(error))
            self._loop.call_soon_threadsafe(self._allocated, added, outcome)

        self._thread.submit(run)

    def _create(
        self, added: AddedSegment, progress: Callable[[int, int], None]
    ) -> tuple[StoredSegment, RegionRef]:
        """On the thread."""
        place = added_place(added, self._parts.node)
        segment = place.create(added.size_bytes, progress, added.number)
        try:
            region = self._parts.engine.register(segment.memory)
        except McError:
            segment.close()
            raise
        return StoredSegment(segment, place), region

    def _allocated(
        self, added: AddedSegment, outcome: tuple[StoredSegment, RegionRef] | McError
    ) -> None:
        allocating = self._allocating.pop(added.number)
        path = added_path(added, self._parts.node)
        if isinstance(outcome, McError):
            log.error("segment not added number=%d path=%s why=%s", added.number, path, outcome)
            self._failed[added.number] = added, outcome.message
            if allocating.is_new:
                self._forget(added.number)
            return
        stored, region = outcome
        segment = stored.segment
        if self._parts.config.keep:
            keep_index(stored, self._replicas, self._parts.node)
        self._storage.added[added.number] = stored
        self._regions[added.number] = region
        self._replicas.segments.add(segment)
        self._prefault(segment)
        size = format_size(segment.slots.capacity_bytes)
        log.info("segment mounted number=%d path=%s size=%s", added.number, path, size)
        self._parts.on_changed()
        self._replicas.on_room()

    def _prefault(self, segment: Segment) -> None:
        stop = self._prefaults[segment.number] = threading.Event()
        prefault_in_background(segment.array, stop)

    # Unmounting.

    def _remove(self, number: int) -> SegmentState:
        """Raises NotFound, Rejected, Exhausted."""
        if number == 0:
            raise Rejected(
                "segment 0 is that of the node's configuration; to give its memory back drain the node, stop it and "
                "remove its file, or set segment.size and restart it"
            )
        failed = self._failed.get(number)
        if failed is not None:
            self._parts.known.remove(number)
            del self._failed[number]
            return self._state_of(failed[0], "leaving")
        stored = self._storage.added.get(number)
        if stored is None:
            is_coming = number in self._allocating
            what = (
                "is still being allocated" if is_coming else "is not lent; see mcctl segment list"
            )
            raise NotFound(f"segment {number} of node {self._parts.node} {what}")
        if number not in self._leaving:
            self._check_pinned(stored.segment)
            self._parts.known.leave(number)
            self._begin_leaving(stored.segment)
        return self._state(stored)

    def _check_pinned(self, segment: Segment) -> None:
        """Raises Exhausted when there cannot be room for what must stay."""
        pinned = self._replicas.pinned_bytes_by_segment()
        mine = pinned.pop(segment.number, 0)
        others = [each for each in self._replicas.segments if each is not segment]
        room = sum(each.slots.usable_bytes for each in others if not each.is_leaving)
        if mine > room - sum(pinned.values()):
            raise Exhausted(
                f"{format_size(mine)} of segment {segment.number} are pinned, and the node's other segments have no "
                "room for them: unpin them, move them to another node (mcctl cache move), or add a segment first"
            )

    def _begin_leaving(self, segment: Segment) -> None:
        log.info("segment leaving number=%d", segment.number)
        self._leaving[segment.number] = Leaving(self._leaving_parts, segment)

    def _on_empty(self, segment: Segment) -> None:
        self._loop.call_later(_GRACE_S, self._unmount, segment)

    def _unmount(self, segment: Segment) -> None:
        stop = self._prefaults.pop(segment.number, None)
        if stop is not None:
            stop.set()
        region = self._regions[segment.number]

        def run() -> None:
            error: McError | None = None
            try:
                self._parts.engine.deregister(region)
            except TransferError:  # out of everybody's reach since the last try
                pass
            except McError as caught:
                error = caught
            self._loop.call_soon_threadsafe(self._unmounted, segment, error)

        self._thread.submit(run)

    def _unmounted(self, segment: Segment, error: McError | None) -> None:
        if error is not None:
            self._leaving[segment.number].why = error.message
            self._loop.call_later(_RETRY_S, self._unmount, segment)
            return
        number = segment.number
        stored = self._storage.added.pop(number)
        self._replicas.segments.remove(segment)
        self._replicas.forget_index(segment)
        stored.discard()
        del self._regions[number], self._leaving[number]
        self._forget(number)
        log.info("segment unmounted number=%d path=%s", number, stored.place.path)
        self._parts.on_changed()

    def _forget(self, number: int) -> None:
        """Where that cannot be written down the next start finds it leaving, without a file, and forgets it then."""
        try:
            self._parts.known.remove(number)
        except Exhausted as error:
            log.error("segment list not written why=%s", error.message)  # noqa: TRY400 - a full disk

    # Showing.

    def _state(self, stored: StoredSegment) -> SegmentState:
        segment = stored.segment
        leaving = self._leaving.get(segment.number)
        return SegmentState(
            number=segment.number,
            path=str(stored.place.path or ""),
            status="mounted" if leaving is None else "leaving",
            capacity_bytes=segment.slots.capacity_bytes,
            used_bytes=segment.slots.used_bytes,
            num_blocks=self._replicas.num_sealed_in(segment),
            done_bytes=segment.slots.capacity_bytes,
            why="" if leaving is None else leaving.why,
        )

    def _state_of(
        self, added: AddedSegment, status: SegmentStatus, *, done_bytes: int = 0, why: str = ""
    ) -> SegmentState:
        return SegmentState(
            number=added.number,
            path=str(added_path(added, self._parts.node)),
            status=status,
            capacity_bytes=added.size_bytes,
            done_bytes=done_bytes,
            why=why,
        )


def _check_size(size_bytes: int) -> None:
    if not MIN_SLAB <= size_bytes <= 1 << SEGMENT_SPAN_BITS:
        most = format_size(1 << SEGMENT_SPAN_BITS)
        raise Rejected(
            f"a segment of {format_size(size_bytes)}; it has {format_size(MIN_SLAB)} to {most}"
        )
