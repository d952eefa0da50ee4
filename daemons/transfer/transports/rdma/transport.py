"""READ and WRITE over RDMA: the peer's CPU takes no part once it has told its keys.

Owns the devices, what is registered with them, and the connections; `carrier` moves the bytes of a batch.
"""

import contextlib
import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from daemons.core.errors import ConfigError
from daemons.core.ids import Epoch
from daemons.protocol.segment import DataAddress
from daemons.transfer.credentials import Credential
from daemons.transfer.hardware import Topology
from daemons.transfer.memory import Region
from daemons.transfer.transports.base import ReadBatch, Unreachable, WriteBatch
from daemons.transfer.transports.rdma.affinity import NearDevices
from daemons.transfer.transports.rdma.carrier import Batch, Carrier, Scratch
from daemons.transfer.transports.rdma.device import Device, open_devices
from daemons.transfer.transports.rdma.endpoint_pool import EndpointPool
from daemons.transfer.transports.rdma.listener import ControlListener, Service
from daemons.transfer.transports.rdma.mover import KeyRefused
from daemons.transfer.transports.rdma.peer import Peer, PeerLost
from daemons.transfer.transports.rdma.queue_pair import Retries
from daemons.transfer.transports.rdma.registration import RegistrationTable
from daemons.transfer.transports.rdma.verbs import RdmaUnavailable

log = logging.getLogger(__name__)

_MAX_ENDPOINTS = 256
_MAX_PER_PATH = 4
_RETRIES = Retries()
_MAX_TRIES = 4
_REMEMBER_DEAD_S = 1.0
_STOP_USE_TIMEOUT_S = 10.0


def open_rdma(
    epoch: Epoch,
    bind_host: str,
    deliver: Callable[[int, bytes], bool],
    credential: Credential | None,
    *,
    is_required: bool,
    topology: Topology | None = None,
) -> "RdmaTransport | None":
    """The transport of an engine. Without RDMA None, and a line in the log; where there is no other, ConfigError."""
    try:
        return RdmaTransport(
            epoch, bind_host, deliver=deliver, credential=credential, topology=topology
        )
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
        credential: Credential | None = None,
        device_names: Sequence[str] | None = None,
        retries: Retries = _RETRIES,
        max_endpoints: int = _MAX_ENDPOINTS,
        topology: Topology | None = None,
    ) -> None:
        self._epoch = epoch
        self._credential = credential
        self._devices = _open(device_names, topology)
        self._lock = threading.Lock()
        self._peers: dict[tuple[str, int], Peer] = {}
        self._dead_until_s: dict[tuple[str, int], float] = {}
        with contextlib.ExitStack() as undo:
            for device in self._devices:
                undo.callback(device.close)
            self._registrations = RegistrationTable(self._devices)
            self._pool = EndpointPool(
                retries, max_endpoints=max_endpoints, max_per_path=_MAX_PER_PATH
            )
            self._scratch = Scratch(self._devices, max_endpoints)
            undo.callback(self._scratch.close)
            near = NearDevices(topology)
            self._carrier = Carrier(self._pool, self._registrations, self._scratch, near)
            sock = undo.enter_context(_listen(bind_host, port))
            host, port = sock.getsockname()[:2]
            self.endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            service = Service(
                epoch, self._devices, self._registrations, retries, deliver, credential
            )
            self._listener = ControlListener(service, sock)
            undo.pop_all()

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
        try:
            self._carrier.carry(batch, peer)
        except (PeerLost, KeyRefused):
            self._forget(peer)
            raise

    def cut_refused(self) -> None:
        """As the listener does."""
        self._listener.cut_refused()

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
            peer = Peer(address, self._epoch, self._devices, self._credential, timeout_s)
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


def _open(names: Sequence[str] | None, topology: Topology | None) -> list[Device]:
    devices = open_devices(names, topology.ignored if topology else ())
    missing = set(names or ()) - {device.name for device in devices}
    if missing:
        for device in devices:
            device.close()
        raise ConfigError(f"RDMA device {min(missing)} is not there or not usable")
    if topology is None:
        return devices
    return [
        dataclasses.replace(device, bytes_per_s=topology.link_bytes_per_s(device.name, device.port))
        for device in devices
    ]


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} for RDMA control: {error.strerror}"
        ) from error
