"""READ from peers over RDMA: the peer's CPU takes no part once it has told its keys.

A batch runs over one or several lanes (queue pairs on different devices). Its generation is checked after all bytes
are in place, by reading the word from the owner: words only grow, so the check before would add nothing.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from daemons.core.errors import ConfigError, TransferError, Unavailable
from daemons.core.ids import Epoch
from daemons.protocol.segment import DataAddress, Strided
from daemons.transfer.memory import Region
from daemons.transfer.transports.base import ReadBatch, Unreachable
from daemons.transfer.transports.rdma.device import Device, open_devices
from daemons.transfer.transports.rdma.endpoint_pool import EndpointPool
from daemons.transfer.transports.rdma.listener import ControlListener
from daemons.transfer.transports.rdma.messages import OpenRegionReply
from daemons.transfer.transports.rdma.mover import KeyRefused, Keys, Lane, Mover, NoLaneLeft, Work
from daemons.transfer.transports.rdma.peer import Path, Peer, PeerLost
from daemons.transfer.transports.rdma.queue_pair import Opcode, Retries
from daemons.transfer.transports.rdma.registration import (
    Registration,
    RegistrationTable,
    address_of,
    register,
)
from daemons.transfer.transports.rdma.slices import (
    MIN_SLICE_BYTES,
    Limits,
    LocalRange,
    Slice,
    cut,
    slice_size,
)
from daemons.transfer.transports.rdma.verbs import load

log = logging.getLogger(__name__)

_MAX_ENDPOINTS = 256
_MAX_PER_PATH = 4
_RETRIES = Retries()
_REMEMBER_DEAD_S = 1.0
_STOP_USE_TIMEOUT_S = 10.0


class RdmaTransport:
    """One per engine. Opens the devices; raises RdmaUnavailable where there are none."""

    scheme: ClassVar[str] = "rdma"

    def __init__(
        self,
        epoch: Epoch,
        bind_host: str,
        port: int = 0,
        *,
        device_names: Sequence[str] | None = None,
        retries: Retries = _RETRIES,
        max_endpoints: int = _MAX_ENDPOINTS,
    ) -> None:
        self._epoch = epoch
        self._devices = _choose(open_devices(), device_names)
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
        self._listener = ControlListener(epoch, self._devices, self._registrations, sock, retries)

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

    def register(self, region: Region, *, is_writable: bool = False) -> None:
        """Let peers READ the region over RDMA. Where no device takes it, they use another transport."""
        registration = self._registrations.add(region, is_writable=is_writable)
        if registration.why_not:
            log.warning(
                "region not reachable by rdma id=%s why=%s", region.region_id, registration.why_not
            )

    def deregister(self, region_id: int, timeout_s: float = _STOP_USE_TIMEOUT_S) -> None:
        """On return no device touches the region any more.

        Raises Unavailable, and leaves it registered, when own transfers still use it after `timeout_s`. Peers that
        had its keys are cut off; those READ on over new connections.
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
        """READs may be done twice where a connection is lost in between: the second time over a new one."""
        try:
            self._read_once(batch)
        except (PeerLost, KeyRefused) as error:
            log.debug("rdma read again over a new connection why=%s", error)
            self._read_once(batch)

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

    # Reading.

    def _read_once(self, batch: ReadBatch) -> None:
        peer = self._peer(batch)
        try:
            remote = peer.region(batch.region.region_id)
            if batch.region.size_bytes > remote.size_bytes:
                raise TransferError(
                    f"region {batch.region.region_id} has {remote.size_bytes} bytes, not {batch.region.size_bytes}"
                )
            with contextlib.ExitStack() as stack:
                self._move(batch, peer, remote, _use_all(batch, self._registrations, stack))
        except (PeerLost, KeyRefused):
            self._forget(peer)
            raise

    def _move(
        self,
        batch: ReadBatch,
        peer: Peer,
        remote: OpenRegionReply,
        used: tuple[list[Registration], list[tuple[Strided, LocalRange]]],
    ) -> None:
        registrations, reads = used
        total = sum(ranges.length for ranges, _ in reads)
        lanes = self._lanes(batch, peer, remote, registrations, total)
        slices = cut(reads, self._limits(batch, remote, registrations, total, lanes))
        finish = None if batch.on_read is None else batch.finish
        work = Work(Opcode.READ, slices, batch.remaining_s, finish, len(batch.reads))
        mover = Mover(work, lanes, self._pool.discard)
        try:
            mover.run()
            if batch.generation is not None:
                batch.check_generation(self._read_word(batch, peer, mover.lanes))
        except NoLaneLeft as error:
            why = "; ".join(sorted({path.why for path in peer.paths if path.why}))
            message = f"{peer.name} cannot be reached over RDMA: {why or error.message}"
            raise (Unavailable if mover.num_finished else Unreachable)(message) from error
        except PeerLost as error:
            # Reads that were handed to the caller once must not be handed over again.
            if mover.num_finished:
                raise Unavailable(error.message) from error
            raise
        finally:
            for lane in mover.lanes:
                self._pool.release(lane.endpoint)

    def _read_word(self, batch: ReadBatch, peer: Peer, lanes: list[Lane]) -> int:
        """The generation word, read from the owner after everything else is in place."""
        assert batch.generation is not None
        region_id, index = batch.generation.region_id, batch.generation.index
        remote = peer.region(region_id)
        if (index + 1) * 8 > remote.size_bytes:
            raise TransferError(f"generation word {index} is outside region {region_id}")
        endpoint = lanes[0].endpoint
        keys = self._keys(endpoint.path, remote, [self._scratch])
        if keys is None:
            raise Unreachable(f"the generations of {peer.name} cannot be read over RDMA")
        address = self._scratch.address + endpoint.scratch * 8
        word = Slice(index * 8, 8, ((address, 8),), 0, 0)
        lane = Lane(endpoint, keys)
        work = Work(Opcode.READ, iter([word]), batch.remaining_s)
        mover = Mover(work, [lane], self._pool.discard)
        try:
            mover.run()
        finally:
            if not mover.lanes:
                del lanes[0]
        return int(self._words[endpoint.scratch])

    def _lanes(
        self,
        batch: ReadBatch,
        peer: Peer,
        remote: OpenRegionReply,
        registrations: list[Registration],
        total_bytes: int,
    ) -> list[Lane]:
        """One lane per usable path, the idlest first, no more than there are slices; the first is waited for."""
        paths = [
            (path, keys)
            for path in sorted(peer.paths, key=lambda path: path.outstanding_bytes)
            if path.is_usable() and (keys := self._keys(path, remote, registrations)) is not None
        ]
        if not paths:
            why = "; ".join(sorted({path.why for path in peer.paths if path.why}))
            raise Unreachable(
                f"no path to {peer.name} over RDMA: {why or 'no device has its keys'}"
            )
        lanes: list[Lane] = []
        wanted = max(1, min(len(paths), total_bytes // MIN_SLICE_BYTES))
        for path, keys in paths:
            if len(lanes) == wanted:
                break
            try:
                endpoint = self._pool.try_acquire(peer, path)
            except TransferError as error:
                path.fail(error.message)
                continue
            if endpoint is not None:
                lanes.append(Lane(endpoint, keys))
        if not lanes:
            path, keys = next(((p, k) for p, k in paths if p.is_usable()), paths[0])
            if not path.is_usable():
                raise Unreachable(f"no path to {peer.name} over RDMA: {path.why}")
            lanes.append(Lane(self._pool.acquire(peer, path, batch.remaining_s), keys))
        return lanes

    def _limits(
        self,
        batch: ReadBatch,
        remote: OpenRegionReply,
        registrations: list[Registration],
        total_bytes: int,
        lanes: list[Lane],
    ) -> Limits:
        devices = [lane.endpoint.queue_pair.device for lane in lanes]
        max_message = min(device.max_message_bytes for device in devices)
        return Limits(
            slice_bytes=slice_size(total_bytes, len(lanes), max_message),
            remote_chunk_bytes=remote.chunk_bytes,
            local_chunk_bytes=min(registration.chunk_bytes for registration in registrations),
            max_pieces=min(device.max_send_pieces for device in devices),
            merges_reads=batch.on_read is None,
        )

    def _keys(
        self, path: Path, remote: OpenRegionReply, registrations: list[Registration]
    ) -> Keys | None:
        """None where a device at either end has not registered the memory."""
        has_all = all(one.has_keys(path.device_index) for one in registrations)
        if not has_all or len(remote.keys) <= path.peer_device_index:
            return None
        remote_keys = remote.keys[path.peer_device_index]
        if not remote_keys:
            return None
        local = [
            (one.address, one.chunk_bytes, one.local_keys[path.device_index])
            for one in registrations
        ]
        return Keys(remote.address, remote.chunk_bytes, remote_keys, local)

    # Peers.

    def _peer(self, batch: ReadBatch) -> Peer:
        address = batch.region.address
        key = (address.rdma, address.epoch)
        with self._lock:
            peer = self._peers.get(key)
        if peer is not None and peer.is_alive():
            return peer
        if peer is not None:
            self._forget(peer)
        try:
            peer = Peer(address, self._epoch, self._devices, batch.remaining_s())
        except Unreachable:
            self._dead_until_s[key] = time.monotonic() + _REMEMBER_DEAD_S
            raise
        with self._lock:
            self._dead_until_s.pop(key, None)
            other = self._peers.setdefault(key, peer)
        if other is not peer:
            peer.close()
        return other

    def _forget(self, peer: Peer) -> None:
        with self._lock:
            for key, other in list(self._peers.items()):
                if other is peer:
                    del self._peers[key]
        self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        peer.close()
        self._pool.drop_peer(peer)


def _use_all(
    batch: ReadBatch, table: RegistrationTable, stack: contextlib.ExitStack
) -> tuple[list[Registration], list[tuple[Strided, LocalRange]]]:
    """The registrations that the batch's local memory needs, held by `stack`, and its reads in terms of them."""
    registrations: list[Registration] = []
    places: dict[int, tuple[int, int]] = {}
    reads = []
    for read in batch.reads:
        place = places.get(id(read.local))
        if place is None:
            registrations.append(stack.enter_context(table.use(read.local)))
            place = (address_of(read.local), len(registrations) - 1)
            places[id(read.local)] = place
        address, index = place
        base = registrations[index].address
        reads.append((read.remote, LocalRange(address, read.target, index, base)))
    return registrations, reads


def _choose(devices: list[Device], names: Sequence[str] | None) -> list[Device]:
    if names is None:
        return devices
    chosen = [device for device in devices if device.name in names]
    for device in devices:
        if device not in chosen:
            device.close()
    missing = set(names) - {device.name for device in chosen}
    if missing:
        raise ConfigError(f"RDMA device {min(missing)} is not there or not usable")
    return chosen


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} for RDMA control: {error.strerror}"
        ) from error
