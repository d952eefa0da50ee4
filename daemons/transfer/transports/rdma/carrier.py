"""Carries one batch to or from a connected peer: chooses paths, takes queue pairs, and sees to it that all is in place.

The generation of a READ is checked after all bytes are in place, by reading the word from the owner: words only grow,
so a check before would add nothing.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from daemons.core.errors import TransferError, Unavailable
from daemons.core.units import MIB
from daemons.protocol.segment import Strided
from daemons.transfer.device_memory import LocalMemory
from daemons.transfer.slices import MIN_SLICE_BYTES, Slice, Span, cut, slice_bytes, spans_of
from daemons.transfer.transports.base import NotOver, ReadBatch, Unreachable, WriteBatch
from daemons.transfer.transports.rdma.affinity import NearDevices
from daemons.transfer.transports.rdma.device import Device
from daemons.transfer.transports.rdma.endpoint_pool import EndpointPool
from daemons.transfer.transports.rdma.messages import OpenRegionReply
from daemons.transfer.transports.rdma.mover import KeyRefused, Keys, Lane, Mover, NoLaneLeft, Work
from daemons.transfer.transports.rdma.peer import Endpoint, Path, Peer, PeerLost
from daemons.transfer.transports.rdma.queue_pair import Opcode
from daemons.transfer.transports.rdma.registration import (
    CHUNK_BYTES,
    Registration,
    RegistrationTable,
    register,
)
from daemons.transfer.transports.rdma.requests import Buffer, Limits
from daemons.transfer.transports.rdma.verbs import load

_MAX_SPANS = 16
"""Of one slice: short rows share the cost of choosing a path."""

_MAX_REQUEST_BYTES = 2 * MIB
"""Some are under way at once on a queue pair: it is not idle while the next one is posted."""

Batch = ReadBatch | WriteBatch


class Scratch:
    """One registered word per endpoint, where it reads generations to."""

    def __init__(self, devices: Sequence[Device], num_words: int) -> None:
        self.words = np.zeros(num_words, np.uint64)
        access = load().IBV_ACCESS_LOCAL_WRITE
        self.registration = register(devices, self.words.view(np.uint8), access=access)

    def close(self) -> None:
        self.registration.close()


@dataclass(frozen=True, slots=True)
class _Local:
    """The local memory of a batch: buffer i is that of its i-th READ or WRITE."""

    registrations: Sequence[Registration]
    buffers: Sequence[Buffer]
    spans: Sequence[Span]


class Carrier:
    """Thread safe; a batch is carried in its caller's thread."""

    def __init__(
        self,
        pool: EndpointPool,
        registrations: RegistrationTable,
        scratch: Scratch,
        near_devices: NearDevices,
    ) -> None:
        self._pool = pool
        self._registrations = registrations
        self._scratch = scratch
        self._near_devices = near_devices

    def carry(self, batch: Batch, peer: Peer) -> None:
        """Raises PeerLost and KeyRefused where a new connection may help, Unreachable where nothing moved."""
        region_id = batch.region.region_id
        remote = peer.region(region_id)
        if batch.region.size_bytes > remote.size_bytes:
            raise TransferError(
                f"region {region_id} has {remote.size_bytes} bytes, not {batch.region.size_bytes}"
            )
        if isinstance(batch, WriteBatch) and not remote.is_writable:
            raise TransferError(f"region {region_id} is registered for READ only")
        near = self._near(batch, peer)
        paths = _choose_paths(batch, peer, remote, near)
        devices = {path.device_index for path in paths}
        with contextlib.ExitStack() as stack:
            local = _use_local(batch, self._registrations, devices, stack)
            with_keys = [(path, _keys(path, remote, local.registrations)) for path in paths]
            lanes = self._lanes(batch, peer, [(path, keys) for path, keys in with_keys if keys])
            work = _work(batch, remote, local, lanes, near)
            mover = Mover(work, peer.routes, lanes, self._discard(batch))
            try:
                self._move(batch, peer, mover, remote)
            finally:
                for lane in mover.lanes:
                    self._pool.release(lane.endpoint)

    def _move(self, batch: Batch, peer: Peer, mover: Mover, remote: OpenRegionReply) -> None:
        try:
            mover.run()
            if isinstance(batch, WriteBatch):
                self._flush(batch, mover.lanes, remote)
            elif batch.generation is not None:
                batch.check_generation(self._read_word(batch, peer, mover.lanes))
        except BaseException as error:
            if not mover.is_fenced:
                raise NotOver(
                    f"a WRITE to {peer.name} failed ({error}) and may still land until the peer closes its path",
                    peer.surrender(),
                ) from error
            if isinstance(error, NoLaneLeft):
                why = peer.routes.reasons() or error.message
                message = f"{peer.name} cannot be reached over RDMA: {why}"
                raise (Unavailable if mover.num_finished else Unreachable)(message) from error
            if isinstance(error, PeerLost | KeyRefused) and mover.num_finished:
                # What was handed to the caller once must not be handed over again.
                raise Unavailable(error.message) from error
            raise

    def _near(self, batch: Batch, peer: Peer) -> frozenset[str]:
        """Paths whose device here is close to the local memory; a batch's memory is on one node, as a rule."""
        _, memory, _ = next(_parts(batch))
        devices = self._near_devices.near_memory(memory)
        return frozenset(path.name for path in peer.paths if peer.device_name(path) in devices)

    def _discard(self, batch: Batch) -> Callable[[Endpoint], bool]:
        """A READ ends with this end of the path; a WRITE is over when the peer's end is gone, too."""
        confirms = isinstance(batch, WriteBatch)
        return lambda endpoint: self._pool.discard(endpoint, confirms=confirms)

    def _read_word(self, batch: ReadBatch, peer: Peer, lanes: list[Lane]) -> int:
        """The generation word, read from the owner after everything else is in place."""
        assert batch.generation is not None
        region_id, index = batch.generation.region_id, batch.generation.index
        remote = peer.region(region_id)
        if (index + 1) * 8 > remote.size_bytes:
            raise TransferError(f"generation word {index} is outside region {region_id}")
        keys = _keys(lanes[0].endpoint.path, remote, [self._scratch.registration])
        if keys is None:
            raise Unreachable(f"the generations of {peer.name} cannot be read over RDMA")
        return self._read_small(batch, lanes, Lane(lanes[0].endpoint, keys), (index * 8, 8))

    def _flush(self, batch: WriteBatch, lanes: list[Lane], remote: OpenRegionReply) -> None:
        """A READ behind the WRITEs of each lane: its answer says that the owner's CPU can see them.

        The acknowledgement of a WRITE only says that the owner's device has the bytes.
        """
        for lane in list(lanes):
            keys = _keys(lane.endpoint.path, remote, [self._scratch.registration])
            assert keys is not None, "the lane carried WRITEs to this region"
            self._read_small(batch, lanes, Lane(lane.endpoint, keys), (0, 1))

    def _read_small(
        self, batch: Batch, lanes: list[Lane], lane: Lane, remote: tuple[int, int]
    ) -> int:
        """(offset, length) of a few bytes, into the endpoint's word; an endpoint that fails leaves `lanes`."""
        endpoint, scratch = lane.endpoint, self._scratch
        scratch.words[endpoint.scratch] = 0
        offset, length = remote
        base = scratch.registration.address
        work = Work(
            Opcode.READ,
            [Slice((Span(offset, 0, length),), length)],
            [Buffer(base + endpoint.scratch * 8, 0, base)],
            Limits(length, CHUNK_BYTES, CHUNK_BYTES, 1),
            batch.remaining_s,
        )
        mover = Mover(work, endpoint.peer.routes, [lane], self._pool.discard)
        try:
            mover.run()
        finally:
            if not mover.lanes:
                lanes[:] = [other for other in lanes if other.endpoint is not endpoint]
        return int(scratch.words[endpoint.scratch])

    def _lanes(self, batch: Batch, peer: Peer, paths: Sequence[tuple[Path, Keys]]) -> list[Lane]:
        """One lane per path that has or gets an endpoint at once; the first is waited for."""
        lanes: list[Lane] = []
        full: list[tuple[Path, Keys]] = []
        for path, keys in paths:
            try:
                endpoint = self._pool.try_acquire(peer, path)
            except TransferError as error:
                peer.routes.blame(path.name, error.message)
                continue
            if endpoint is None:
                full.append((path, keys))
            else:
                lanes.append(Lane(endpoint, keys))
        if not lanes:
            if not full:
                why = "no pair of devices has registered the memory at both ends"
                raise _no_path(peer, peer.routes.reasons() or why)
            path, keys = full[0]
            lanes.append(Lane(self._pool.acquire(peer, path, batch.remaining_s), keys))
        return lanes


def _choose_paths(
    batch: Batch, peer: Peer, remote: OpenRegionReply, near: Collection[str]
) -> list[Path]:
    """Usable paths whose far end has the region's keys, near and idle ones first, no more than there are slices for."""
    by_name = {path.name: path for path in peer.paths}
    usable = [by_name[name] for name in peer.routes.usable(near)]
    paths = [
        path
        for path in usable
        if any(remote.keys[path.peer_device_index : path.peer_device_index + 1])
    ]
    if not paths:
        why = f"no device of it has registered region {batch.region.region_id}"
        raise _no_path(peer, peer.routes.reasons() or why)
    return paths[: max(1, batch.length // MIN_SLICE_BYTES)]


def _no_path(peer: Peer, why: str) -> Unreachable:
    return Unreachable(f"no path to {peer.name} over RDMA: {why}")


def _work(
    batch: Batch,
    remote: OpenRegionReply,
    local: _Local,
    lanes: Sequence[Lane],
    near: Collection[str],
) -> Work:
    devices = [lane.endpoint.queue_pair.device for lane in lanes]
    limits = Limits(
        request_bytes=min(_MAX_REQUEST_BYTES, *(device.max_message_bytes for device in devices)),
        remote_chunk_bytes=remote.chunk_bytes,
        local_chunk_bytes=min(
            (one.chunk_bytes for one in local.registrations), default=CHUNK_BYTES
        ),
        max_pieces=min(device.max_send_pieces for device in devices),
    )
    opcode, is_watched = Opcode.WRITE, batch.progress is not None
    if isinstance(batch, ReadBatch):
        opcode, is_watched = Opcode.READ, is_watched or batch.on_read is not None
    return Work(
        opcode,
        cut(local.spans, slice_bytes(batch.length, len(lanes)), max_spans=_MAX_SPANS),
        local.buffers,
        limits,
        batch.remaining_s,
        batch.finish if is_watched else None,
        near,
    )


def _keys(
    path: Path, remote: OpenRegionReply, registrations: Sequence[Registration]
) -> Keys | None:
    """None where a device at either end has not registered the memory."""
    has_all = all(one.has_keys(path.device_index) for one in registrations)
    if not has_all or len(remote.keys) <= path.peer_device_index:
        return None
    remote_keys = remote.keys[path.peer_device_index]
    if not remote_keys:
        return None
    local = [
        (one.address, one.chunk_bytes, one.local_keys[path.device_index]) for one in registrations
    ]
    return Keys(remote.address, remote.chunk_bytes, remote_keys, local)


def _use_local(
    batch: Batch, table: RegistrationTable, devices: set[int], stack: contextlib.ExitStack
) -> _Local:
    """The registrations that the batch's local memory needs, held by `stack`."""
    registrations: list[Registration] = []
    places: dict[int, Buffer] = {}
    buffers: list[Buffer] = []
    spans: list[Span] = []
    for number, (remote, memory, local) in enumerate(_parts(batch)):
        buffer = places.get(id(memory))
        if buffer is None:
            used = table.use(memory, devices, is_target=isinstance(batch, ReadBatch))
            registration = stack.enter_context(used)
            place = registration.address_of(memory)
            buffer = Buffer(place, len(registrations), registration.address)
            registrations.append(registration)
            places[id(memory)] = buffer
        buffers.append(buffer)
        spans.extend(spans_of(remote, local, number))
    return _Local(registrations, buffers, spans)


def _parts(batch: Batch) -> Iterator[tuple[Strided, LocalMemory, Strided]]:
    """(remote ranges, local memory, local ranges)."""
    if isinstance(batch, WriteBatch):
        return ((write.remote, write.local, write.source) for write in batch.writes)
    return ((read.remote, read.local, read.target) for read in batch.reads)
