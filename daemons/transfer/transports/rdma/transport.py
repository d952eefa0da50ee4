"""READ and WRITE over RDMA: the peer's CPU takes no part once it has told its keys.

A batch runs over one or several lanes (queue pairs on different devices). The generation of a READ is checked after all
bytes are in place, by reading the word from the owner: words only grow, so a check before would add nothing.
"""

import contextlib
import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from daemons.core.errors import ConfigError, TransferError, Unavailable
from daemons.core.ids import Epoch
from daemons.protocol.segment import DataAddress, Strided
from daemons.transfer.memory import Region
from daemons.transfer.slices import MIN_SLICE_BYTES, slice_bytes
from daemons.transfer.strided import ByteArray
from daemons.transfer.transports.base import NotOver, ReadBatch, Unreachable, WriteBatch
from daemons.transfer.transports.rdma.device import Device, open_devices
from daemons.transfer.transports.rdma.endpoint_pool import EndpointPool
from daemons.transfer.transports.rdma.listener import ControlListener, Service
from daemons.transfer.transports.rdma.messages import OpenRegionReply
from daemons.transfer.transports.rdma.mover import KeyRefused, Keys, Lane, Mover, NoLaneLeft, Work
from daemons.transfer.transports.rdma.peer import Path, Peer, PeerLost
from daemons.transfer.transports.rdma.queue_pair import Opcode, Retries
from daemons.transfer.transports.rdma.registration import (
    CHUNK_BYTES,
    Registration,
    RegistrationTable,
    address_of,
    register,
)
from daemons.transfer.transports.rdma.slices import Limits, LocalRange, Slice, cut
from daemons.transfer.transports.rdma.verbs import RdmaUnavailable, load

log = logging.getLogger(__name__)

_MAX_ENDPOINTS = 256
_MAX_PER_PATH = 4
_RETRIES = Retries()
_MAX_TRIES = 4
_REMEMBER_DEAD_S = 1.0
_STOP_USE_TIMEOUT_S = 10.0

Batch = ReadBatch | WriteBatch
LocalRanges = list[tuple[Strided, LocalRange]]


def open_rdma(
    epoch: Epoch,
    bind_host: str,
    deliver: Callable[[int, bytes], bool],
    secret: bytes | None,
    *,
    is_required: bool,
) -> "RdmaTransport | None":
    """The transport of an engine. Without RDMA None, and a line in the log; where there is no other, ConfigError."""
    try:
        return RdmaTransport(epoch, bind_host, deliver=deliver, secret=secret)
    except RdmaUnavailable as error:
        if is_required:
            raise ConfigError(
                f"transports name rdma without tcp, but RDMA cannot be used: {error.message}"
            ) from error
        log.warning("rdma is not used why=%s", error.message)
        return None


class RdmaTransport:
    """One per engine. Opens the devices; raises RdmaUnavailable where there are none."""

    scheme: ClassVar[str] = "rdma"

    def __init__(  # noqa: PLR0913  # settings of a process, by keyword
        self,
        epoch: Epoch,
        bind_host: str,
        port: int = 0,
        *,
        deliver: Callable[[int, bytes], bool] = lambda _region_id, _message: False,
        secret: bytes | None = None,
        device_names: Sequence[str] | None = None,
        retries: Retries = _RETRIES,
        max_endpoints: int = _MAX_ENDPOINTS,
    ) -> None:
        self._epoch = epoch
        self._secret = secret
        self._devices = _open(device_names)
        self._registrations = RegistrationTable(self._devices)
        self._pool = EndpointPool(retries, max_endpoints=max_endpoints, max_per_path=_MAX_PER_PATH)
        # One word per endpoint, where it reads generations to.
        self._words = np.zeros(max_endpoints, np.uint64)
        self._scratch = register(
            self._devices, self._words.view(np.uint8), access=load().IBV_ACCESS_LOCAL_WRITE
        )
        self._lock = threading.Lock()
        self._peers: dict[tuple[str, int], Peer] = {}
        self._dead_until_s: dict[tuple[str, int], float] = {}
        sock = _listen(bind_host, port)
        host, port = sock.getsockname()[:2]
        self.endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        service = Service(epoch, self._devices, self._registrations, retries, deliver, secret)
        self._listener = ControlListener(service, sock)

    @property
    def device_names(self) -> list[str]:
        return [device.name for device in self._devices]

    @property
    def num_endpoints(self) -> int:
        """Queue pairs of this side's transfers, idle ones included."""
        return len(self._pool)

    @property
    def num_served(self) -> int:
        """Queue pairs made for peers."""
        return self._listener.num_queue_pairs

    def register(self, region: Region) -> None:
        """Let peers READ the region over RDMA, WRITE it where its access says so. Pins every page.

        Where no device takes it, peers use another transport.
        """
        registration = self._registrations.add(region)
        if registration.why_not:
            log.warning(
                "rdma does not reach region id=%s why=%s", region.region_id, registration.why_not
            )

    def deregister(self, region_id: int, timeout_s: float = _STOP_USE_TIMEOUT_S) -> None:
        """On return no device touches the region any more.

        Raises Unavailable, and leaves it registered, when own transfers still use it after `timeout_s`. Peers that
        had its keys are cut off; those go on over new connections.
        """
        self._registrations.stop_use(region_id, timeout_s)
        self._listener.forget_region(region_id)
        self._registrations.remove(region_id)

    def cut_off(self, epoch: Epoch) -> None:
        """Destroy what this process holds for a peer: WRITEs of it, however late, can no longer land."""
        self._listener.forget_peer(epoch)

    def reaches(self, address: DataAddress) -> bool:
        if not address.rdma:
            return False
        key = (address.rdma, address.epoch)
        return self._dead_until_s.get(key, 0) <= time.monotonic()

    def read(self, batch: ReadBatch) -> None:
        self._run(batch)

    def write(self, batch: WriteBatch) -> None:
        self._run(batch)

    def notify(self, batch: Batch, message: bytes) -> None:
        self._peer(batch).notify(batch.region.region_id, message)

    def close(self) -> None:
        self._listener.close()
        with self._lock:
            peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            self._drop(peer)
        self._registrations.close()
        self._scratch.close()
        for device in self._devices:
            device.close()

    def _run(self, batch: Batch) -> None:
        """Done again where the connection is lost in between, as when the owner deregistered something else."""
        for _ in range(_MAX_TRIES - 1):
            try:
                self._run_once(batch)
            except (PeerLost, KeyRefused) as error:
                log.debug("rdma again over a new connection why=%s", error)
            else:
                return
        self._run_once(batch)

    def _run_once(self, batch: Batch) -> None:
        peer = self._peer(batch)
        region_id = batch.region.region_id
        try:
            remote = peer.region(region_id)
            if batch.region.size_bytes > remote.size_bytes:
                raise TransferError(
                    f"region {region_id} has {remote.size_bytes} bytes, not {batch.region.size_bytes}"
                )
            if isinstance(batch, WriteBatch) and not remote.is_writable:
                raise TransferError(f"region {region_id} is registered for READ only")
            paths = _choose_paths(batch, peer, remote)
            with contextlib.ExitStack() as stack:
                used = _use_all(batch, self._registrations, {p.device_index for p in paths}, stack)
                self._move(batch, peer, remote, paths, used)
        except (PeerLost, KeyRefused):
            self._forget(peer)
            raise

    def _move(
        self,
        batch: Batch,
        peer: Peer,
        remote: OpenRegionReply,
        paths: Sequence[Path],
        used: tuple[list[Registration], LocalRanges],
    ) -> None:
        registrations, ranges = used
        with_keys = [(path, _keys(path, remote, registrations)) for path in paths]
        lanes = self._lanes(batch, peer, [(path, keys) for path, keys in with_keys if keys])
        slices = cut(ranges, _limits(batch, remote, registrations, lanes))
        mover = Mover(_work(batch, slices), lanes, self._discard_for(batch))
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
                why = _reasons(peer) or error.message
                message = f"{peer.name} cannot be reached over RDMA: {why}"
                raise (Unavailable if mover.num_finished else Unreachable)(message) from error
            if isinstance(error, PeerLost | KeyRefused) and mover.num_finished:
                # What was handed to the caller once must not be handed over again.
                raise Unavailable(error.message) from error
            raise
        finally:
            for lane in mover.lanes:
                self._pool.release(lane.endpoint)

    def _discard_for(self, batch: Batch) -> Callable[..., bool]:
        """A READ ends with this end of the path; a WRITE is over when the peer's end is gone, too."""
        return functools.partial(self._pool.discard, confirms=isinstance(batch, WriteBatch))

    def _read_word(self, batch: ReadBatch, peer: Peer, lanes: list[Lane]) -> int:
        """The generation word, read from the owner after everything else is in place."""
        assert batch.generation is not None
        region_id, index = batch.generation.region_id, batch.generation.index
        remote = peer.region(region_id)
        if (index + 1) * 8 > remote.size_bytes:
            raise TransferError(f"generation word {index} is outside region {region_id}")
        keys = _keys(lanes[0].endpoint.path, remote, [self._scratch])
        if keys is None:
            raise Unreachable(f"the generations of {peer.name} cannot be read over RDMA")
        return self._read_small(batch, lanes, Lane(lanes[0].endpoint, keys), (index * 8, 8))

    def _flush(self, batch: WriteBatch, lanes: list[Lane], remote: OpenRegionReply) -> None:
        """A READ behind the WRITEs of each lane: its answer says that the owner's CPU can see them.

        The acknowledgement of a WRITE only says that the owner's device has the bytes.
        """
        for lane in list(lanes):
            keys = _keys(lane.endpoint.path, remote, [self._scratch])
            assert keys is not None, "the lane carried WRITEs to this region"
            self._read_small(batch, lanes, Lane(lane.endpoint, keys), (0, 1))

    def _read_small(
        self, batch: Batch, lanes: list[Lane], lane: Lane, remote: tuple[int, int]
    ) -> int:
        """(offset, length) of a few bytes, into the endpoint's word; an endpoint that fails leaves `lanes`."""
        endpoint = lane.endpoint
        self._words[endpoint.scratch] = 0
        offset, length = remote
        address = self._scratch.address + endpoint.scratch * 8
        word = Slice(offset, length, ((address, length),), 0, 0)
        work = Work(Opcode.READ, iter([word]), batch.remaining_s)
        mover = Mover(work, [lane], self._pool.discard)
        try:
            mover.run()
        finally:
            if not mover.lanes:
                lanes[:] = [other for other in lanes if other.endpoint is not endpoint]
        return int(self._words[endpoint.scratch])

    def _lanes(self, batch: Batch, peer: Peer, paths: Sequence[tuple[Path, Keys]]) -> list[Lane]:
        """One lane per path that has or gets an endpoint at once; the first is waited for."""
        lanes: list[Lane] = []
        for path, keys in paths:
            try:
                endpoint = self._pool.try_acquire(peer, path)
            except TransferError as error:
                path.fail(error.message)
                continue
            if endpoint is not None:
                lanes.append(Lane(endpoint, keys))
        if not lanes:
            usable = [(path, keys) for path, keys in paths if path.is_usable()]
            if not usable:
                why = _reasons(peer) or "no pair of devices has registered the memory at both ends"
                raise Unreachable(f"no path to {peer.name} over RDMA: {why}")
            path, keys = usable[0]
            lanes.append(Lane(self._pool.acquire(peer, path, batch.remaining_s), keys))
        return lanes

    # Peers.

    def _peer(self, batch: Batch) -> Peer:
        address = batch.region.address
        key = (address.rdma, address.epoch)
        with self._lock:
            peer = self._peers.get(key)
        if peer is not None and peer.is_alive():
            return peer
        if peer is not None:
            self._forget(peer)
        timeout_s = batch.remaining_s()
        try:
            peer = Peer(address, self._epoch, self._devices, self._secret, timeout_s)
        except Unreachable:
            self._remember_dead(key)
            raise
        with self._lock:
            self._dead_until_s.pop(key, None)
            other = self._peers.setdefault(key, peer)
        if other is not peer:
            peer.close()
        return other

    def _remember_dead(self, key: tuple[str, int]) -> None:
        now_s = time.monotonic()
        with self._lock:
            for old in [k for k, until_s in self._dead_until_s.items() if until_s < now_s]:
                del self._dead_until_s[old]
            self._dead_until_s[key] = now_s + _REMEMBER_DEAD_S

    def _forget(self, peer: Peer) -> None:
        with self._lock:
            for key, other in list(self._peers.items()):
                if other is peer:
                    del self._peers[key]
        self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        peer.is_lost = True
        self._pool.drop_peer(peer)
        peer.close()


def _work(batch: Batch, slices: Iterator[Slice]) -> Work:
    if isinstance(batch, WriteBatch):
        is_watched = batch.progress is not None
        opcode, num_ranges = Opcode.WRITE, len(batch.writes)
    else:
        is_watched = batch.on_read is not None or batch.progress is not None
        opcode, num_ranges = Opcode.READ, len(batch.reads)
    finish = batch.finish if is_watched else None
    return Work(opcode, slices, batch.remaining_s, finish, num_ranges)


def _choose_paths(batch: Batch, peer: Peer, remote: OpenRegionReply) -> list[Path]:
    """Usable paths whose far end has the region's keys, the idlest first, no more than there are slices for."""
    paths = [
        path
        for path in sorted(peer.paths, key=lambda path: path.outstanding_bytes)
        if path.is_usable()
        and any(remote.keys[path.peer_device_index : path.peer_device_index + 1])
    ]
    if not paths:
        why = _reasons(peer) or f"no device of it has registered region {batch.region.region_id}"
        raise Unreachable(f"no path to {peer.name} over RDMA: {why}")
    return paths[: max(1, _total_bytes(batch) // MIN_SLICE_BYTES)]


def _total_bytes(batch: Batch) -> int:
    return sum(remote.length for remote, _, _ in _parts(batch))


def _limits(
    batch: Batch,
    remote: OpenRegionReply,
    registrations: list[Registration],
    lanes: list[Lane],
) -> Limits:
    devices = [lane.endpoint.queue_pair.device for lane in lanes]
    max_message = min(device.max_message_bytes for device in devices)
    return Limits(
        slice_bytes=min(slice_bytes(_total_bytes(batch), len(lanes)), max_message),
        remote_chunk_bytes=remote.chunk_bytes,
        local_chunk_bytes=min((one.chunk_bytes for one in registrations), default=CHUNK_BYTES),
        max_pieces=min(device.max_send_pieces for device in devices),
        # A reader that hashes each read while it is in the cache wants them one by one.
        merges_ranges=isinstance(batch, WriteBatch) or batch.on_read is None,
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


def _reasons(peer: Peer) -> str:
    return "; ".join(sorted({path.why for path in peer.paths if path.why}))


def _use_all(
    batch: Batch, table: RegistrationTable, devices: set[int], stack: contextlib.ExitStack
) -> tuple[list[Registration], LocalRanges]:
    """The registrations that the batch's local memory needs, held by `stack`, and its ranges in terms of them."""
    registrations: list[Registration] = []
    places: dict[int, tuple[int, int]] = {}
    ranges: LocalRanges = []
    for remote, array, local in _parts(batch):
        place = places.get(id(array))
        if place is None:
            used = table.use(array, devices, is_target=isinstance(batch, ReadBatch))
            registrations.append(stack.enter_context(used))
            place = places[id(array)] = (address_of(array), len(registrations) - 1)
        address, index = place
        ranges.append((remote, LocalRange(address, local, index, registrations[index].address)))
    return registrations, ranges


def _parts(batch: Batch) -> Iterator[tuple[Strided, ByteArray, Strided]]:
    """(remote ranges, local memory, local ranges)."""
    if isinstance(batch, WriteBatch):
        return ((write.remote, write.local, write.source) for write in batch.writes)
    return ((read.remote, read.local, read.target) for read in batch.reads)


def _open(names: Sequence[str] | None) -> list[Device]:
    devices = open_devices(names)
    missing = set(names or ()) - {device.name for device in devices}
    if missing:
        for device in devices:
            device.close()
        raise ConfigError(f"RDMA device {min(missing)} is not there or not usable")
    return devices


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} for RDMA control: {error.strerror}"
        ) from error
