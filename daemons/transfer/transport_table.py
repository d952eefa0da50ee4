"""The transports of one engine in the order it prefers them, and which one carries a batch.

Own memory is reached directly, a peer's by the first that reaches it; what has no path moved nothing, so the next one
may try. The short ways are for single small transfers, by the path that the long way would take.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from daemons.core.errors import ConfigError, TransferError, Unavailable
from daemons.core.ids import Epoch
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.transfer import staging
from daemons.transfer.credentials import Credential, SharedSecret
from daemons.transfer.hardware import Topology
from daemons.transfer.links import interface_to
from daemons.transfer.memory import Region, host_id
from daemons.transfer.notifications import MAX_MESSAGE_BYTES
from daemons.transfer.path_record import PathView
from daemons.transfer.regions import RegionTable
from daemons.transfer.strided import ByteArray
from daemons.transfer.transports.base import (
    Read,
    ReadBatch,
    Transport,
    Unreachable,
    Write,
    WriteBatch,
    describe,
)
from daemons.transfer.transports.loopback import LoopbackTransport
from daemons.transfer.transports.rdma import open_rdma
from daemons.transfer.transports.shm import ShmTransport
from daemons.transfer.transports.shm_peer import ShmPeer
from daemons.transfer.transports.tcp import TcpTransport

SCHEMES: Final = ("shm", "tcp", "rdma")
_DEREGISTER_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """Of one engine. `is_guarded`: others may only do what is granted to them."""

    epoch: Epoch
    bind_host: str
    schemes: Sequence[str]
    credential: Credential | None
    is_guarded: bool


class TransportTable:
    """Thread safe. Raises ConfigError where what is asked for cannot be had; nothing is left open then."""

    def __init__(
        self,
        settings: TransportSettings,
        regions: RegionTable,
        own: LoopbackTransport,
        *,
        deliver: Callable[[int, bytes], bool],
        topology: Callable[[], Topology],
    ) -> None:
        schemes, credential = settings.schemes, settings.credential
        self._is_closed = False
        self._epoch = settings.epoch
        self._topology = topology
        self._shm = ShmTransport(host_id(), regions, credential) if "shm" in schemes else None
        self._tcp = None
        if "tcp" in schemes:
            self._tcp = TcpTransport(credential, link_speed=self._link_speed)
        self._rdma = None
        if "rdma" in schemes:
            # Keys open whole regions: where others may only do what is granted, none but daemons get one.
            is_open = credential is not None or not settings.is_guarded
            self._rdma = open_rdma(
                settings.epoch,
                settings.bind_host,
                deliver,
                credential if is_open else SharedSecret(secrets.token_bytes(32)),
                is_required="tcp" not in schemes,
                topology=topology(),
            )
        known = {"shm": self._shm, "tcp": self._tcp, "rdma": self._rdma}
        order = [scheme for scheme in schemes if known[scheme] is not None]
        self._transports: list[Transport] = [own]
        self._transports += [found for scheme in order if (found := known[scheme])]
        # The short ways are for those that the long way would try first.
        self._quick_shm = self._shm if order[:1] == ["shm"] else None
        is_after_rdma = "rdma" in order[: order.index("tcp")] if self._tcp else False
        self._quick_tcp = None if is_after_rdma else self._tcp

    @property
    def rdma_endpoint(self) -> str:
        return self._rdma.endpoint if self._rdma else ""

    def tell_address(self, address: DataAddress) -> None:
        """Where peers find this process's regions, so that they may read from them what is written to them."""
        if self._shm is not None and address.unix_path:
            self._shm.local_address = address

    def register(self, region: Region) -> None:
        if self._rdma is not None:
            self._rdma.register(region)

    def deregister(self, region_id: int) -> None:
        """No device touches it any more on return."""
        if self._rdma is not None:
            self._rdma.deregister(region_id, _DEREGISTER_TIMEOUT_S)

    def cut_refused(self) -> None:
        """Daemons whose keys are not let in any more touch nothing here on return."""
        if self._rdma is not None:
            self._rdma.cut_refused()

    def run(self, batch: ReadBatch | WriteBatch) -> None:
        """On return all of it has been moved, and its message delivered."""
        self._check_open()
        batch.check()
        message, address = batch.notify, batch.region.address
        if message is not None and len(message) > MAX_MESSAGE_BYTES:
            raise TransferError(f"a notification has at most {MAX_MESSAGE_BYTES} bytes")
        is_on_device = staging.is_on_device(batch)
        reason = "no transport of this process reaches it"
        for transport in self._transports:
            if not transport.reaches(address):
                continue
            try:
                if is_on_device and transport is not self._rdma:
                    staging.carry(batch, lambda part, by=transport: _move(by, part))  # type: ignore[misc]  # bound now
                else:
                    _move(transport, batch)
            except Unreachable as error:
                reason = error.message
                continue
            if message is not None:
                transport.notify(batch, message)
            return
        raise Unavailable(f"{describe(address)} cannot be reached: {reason}")

    def read_quick(self, region: RegionRef, reads: Sequence[Read], deadline_s: float) -> bool:
        """READs of one run each by the path that the long way would take; False where that must be found out."""
        address = region.address
        if self._quick_shm is not None and self._quick_shm.reaches(address):
            return len(reads) == 1 and self._quick_shm.read_mapped(region, reads[0])
        tcp, is_foreign = self._quick_tcp, address.epoch != self._epoch
        return tcp is not None and is_foreign and tcp.read_quick(region, reads, deadline_s)

    def write_quick(self, region: RegionRef, writes: Sequence[Write], timeout_s: float) -> bool:
        """The same for WRITEs."""
        address = region.address
        if address.epoch == self._epoch:
            return False
        if self._quick_shm is not None and self._quick_shm.reaches(address):
            return self._quick_shm.write_quick(region, writes, timeout_s)
        tcp = self._quick_tcp
        return tcp is not None and tcp.write_quick(region, writes, timeout_s)

    def pull(self, batch: ReadBatch) -> bool:
        """READ from a peer on this host without its help; False when that is not possible."""
        return self._shm is not None and self._shm.pull(batch)

    def mapped(self, region: RegionRef) -> tuple[ByteArray, Callable[[], bool]] | None:
        """See `TransferEngine.mapped`."""
        if self._quick_shm is None or not self._quick_shm.reaches(region.address):
            return None
        return self._quick_shm.mapped(region)

    def pin(self, region: RegionRef, timeout_s: float) -> tuple[ShmPeer, ByteArray]:
        """A peer's mapped region, kept by its owner until the peer is told to `unpin` it."""
        self._check_open()
        if self._shm is None or not self._shm.reaches(region.address):
            raise TransferError(f"{describe(region.address)} is not on this host; READ it")
        return self._shm.pin(region, timeout_s)

    def paths(self, address: DataAddress) -> list[PathView]:
        return [] if self._tcp is None else self._tcp.views(address)

    def close(self) -> None:
        self._is_closed = True
        for transport in self._transports:
            transport.close()

    def _check_open(self) -> None:
        """A transport would open connections again that nobody closes."""
        if self._is_closed:
            raise Unavailable("this Transfer Engine is closed")

    def _link_speed(self, endpoint: str) -> float | None:
        nic = interface_to(endpoint)
        return self._topology().link_bytes_per_s(nic) if nic else None


def check_schemes(schemes: Sequence[str]) -> None:
    """Raise ConfigError for one that nobody knows."""
    unknown = [scheme for scheme in schemes if scheme not in SCHEMES]
    if unknown:
        raise ConfigError(f"transport {unknown[0]!r} is not one of {', '.join(SCHEMES)}")


def _move(transport: Transport, batch: ReadBatch | WriteBatch) -> None:
    if isinstance(batch, ReadBatch):
        transport.read(batch)
    else:
        transport.write(batch)
