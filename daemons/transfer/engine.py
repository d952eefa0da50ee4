"""The Transfer Engine of one process: its regions, its data port, and READs and WRITEs of anyone's regions.

Own memory is reached directly, a peer's by the first of `transports` that reaches it. The store and the handoff only
READ: the owner of memory is the one who writes it. WRITE is for users who agreed on a region by its access
"read-write".
"""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from daemons.core.errors import McError, TransferError, Unavailable
from daemons.core.ids import Epoch, new_epoch
from daemons.protocol.key import AllowedKeys
from daemons.protocol.segment import DataAddress, Generation, Grant, RegionRef, Strided
from daemons.transfer.buffers import Buffer
from daemons.transfer.capability import Capability, CapabilityKey, Operation
from daemons.transfer.credentials import NodeKeys, credential_of
from daemons.transfer.handle import Handle, Submissions
from daemons.transfer.hardware import Topology
from daemons.transfer.listeners import listen
from daemons.transfer.memory import Access, SharedMemory, host_id
from daemons.transfer.notifications import MAX_MESSAGE_BYTES, Notification, Notifications
from daemons.transfer.path_record import PathView
from daemons.transfer.regions import RegionTable
from daemons.transfer.strided import ByteArray, check_within
from daemons.transfer.topology import discover
from daemons.transfer.transport_table import TransportSettings, TransportTable, check_schemes
from daemons.transfer.transports.access import AccessRules
from daemons.transfer.transports.base import (
    Read,
    ReadBatch,
    Write,
    WriteBatch,
    describe,
)
from daemons.transfer.transports.loopback import LoopbackTransport
from daemons.transfer.transports.server import DataServer
from daemons.transfer.transports.service import ServerCounters, Service
from daemons.transfer.view import View, check_ranges

_DEREGISTER_GRACE_S = 0.05
_UNPIN_GRACE_S = 0.25
_DEREGISTER_TIMEOUT_S = 5.0


class TransferEngine:
    """Data plane of one process. Thread safe.

    `unix_dir` None or no "shm" among `transports`: TCP only; it listens on nothing but what it is told. `more_hosts`
    are addresses of further NICs: peers spread TCP transfers over all of them and outlive the loss of some. With
    `secret`, daemons are the peers that know it, with `keys` those the master gave keys to (`admit`), else processes
    of the same user on this host; only they map memory. `require_capability`: others get only what a `grant` opens;
    None: where there is a secret or keys. `topology` is
    a file that corrects what this host says of its devices. What cannot be had raises ConfigError, and nothing stays.
    """

    def __init__(  # noqa: PLR0913  # settings of a process, by keyword
        self,
        *,
        epoch: Epoch | None = None,
        bind_host: str = "127.0.0.1",
        more_hosts: Sequence[str] = (),
        tcp_port: int = 0,
        unix_dir: str | Path | None = None,
        transports: Sequence[str] = ("shm", "tcp"),
        secret: bytes | None = None,
        keys: NodeKeys | None = None,
        require_capability: bool | None = None,
        max_notifications: int = 1024,
        topology: str | Path | None = None,
    ) -> None:
        check_schemes(transports)
        self._secret, self._keys = secret, keys
        credential = credential_of(secret, keys)
        self._topology_file = None if topology is None else Path(topology)
        if topology is not None:
            _ = self.topology  # a wrong file is refused now, not at the first transfer
        settings = TransportSettings(
            epoch=new_epoch() if epoch is None else epoch,
            bind_host=bind_host,
            schemes=transports,
            credential=credential,
            is_guarded=bool(credential) if require_capability is None else require_capability,
        )
        self._regions = RegionTable()
        self._notifications = Notifications(max_notifications)
        self._key = CapabilityKey(settings.epoch, None if keys else secret)
        self._submissions = Submissions(self.run)
        self._unix_path = (
            Path(unix_dir) / f"{settings.epoch:x}.sock"
            if unix_dir and "shm" in transports
            else None
        )
        with contextlib.ExitStack() as undo:
            self._transports = self._open_transports(settings)
            undo.callback(self._transports.close)
            hosts = (bind_host, *more_hosts) if "tcp" in transports else ()
            listeners, endpoints = listen(hosts, tcp_port, self._unix_path)
            for listener in listeners:
                undo.enter_context(listener)
            undo.callback(self._unlink)
            self.address = self._address(settings.epoch, endpoints)
            self._transports.tell_address(self.address)
            self._server = DataServer(self._service(settings), listeners)
            undo.pop_all()

    @functools.cached_property
    def topology(self) -> Topology:
        """Of this host, as the topology file corrects it; read once."""
        return discover(override=self._topology_file)

    def sibling(self, transport: str) -> "TransferEngine":
        """One more engine of this process, with its credentials; for measuring one transport."""
        return TransferEngine(
            transports=(transport,),
            secret=self._secret,
            keys=self._keys,
            topology=self._topology_file,
        )

    def admit(self, told: AllowedKeys) -> None:
        """The master's word on who is a daemon. Those who are not any more have lost all connections on return.

        Nothing but the end of a process takes away what it has mapped of this host's memory.
        """
        if self._keys is None:
            return
        self._keys.replace(told)
        if told.grants:
            self._key.renew(told.grants)
        self._server.cut_refused()
        self._transports.cut_refused()

    @property
    def counters(self) -> ServerCounters:
        """What the data port has seen."""
        return self._server.counters

    def ticks_ms(self) -> int:
        """The clock by which grants for own regions end."""
        return int(time.monotonic() * 1000)

    # Own memory.

    def register(self, memory: SharedMemory | Buffer, access: Access = "read") -> RegionRef:
        """Let peers READ this memory, with "read-write" also WRITE it. It stays the caller's until `deregister`.

        Takes anything with a contiguous buffer: bytes, numpy, mmap, torch tensors. Peers on this host copy straight
        from a SharedMemory (`allocate_shared`). Memory of a GPU is reached by the NIC over rdma, else staged in host
        memory. Raises TransferError where regions overlap, or the NVIDIA driver is missing.
        """
        region = self._regions.register(memory, access)
        try:
            self._transports.register(region)
        except McError:
            self._regions.deregister(region.region_id)
            raise
        return RegionRef(
            address=self.address, region_id=region.region_id, size_bytes=region.size_bytes
        )

    def deregister(self, region: RegionRef, timeout_s: float = 0.0) -> None:
        """When it returns no request reads or writes the memory any more, and peers have lost their maps.

        Raises Pinned when a peer's view is still open after `timeout_s`; the region then stays.
        """
        region_id = self._own_id(region)
        # Peers say a moment later that their last view has ended.
        self._regions.deregister(region_id, max(timeout_s, _UNPIN_GRACE_S))
        self._server.forget(region_id)
        self._transports.deregister(region_id)
        if self._regions.wait_unused(region_id, _DEREGISTER_GRACE_S):
            return
        self._server.cut(region_id)
        if not self._regions.wait_unused(region_id, _DEREGISTER_TIMEOUT_S):
            raise Unavailable(f"region {region_id} is still used by a request; do not free it yet")

    def grant(
        self,
        region: RegionRef,
        ranges: Sequence[Strided],
        operation: Operation,
        ttl_s: float,
        *,
        generation: Generation | None = None,
    ) -> Capability:
        """What lets its holder do this one thing to these bytes of an own region, for `ttl_s` from now."""
        own = self._regions.get(self._own_id(region))
        for each in ranges:
            check_within(each, own.size_bytes, f"region {own.region_id}")
        if operation == "write" and own.access != "read-write":
            raise TransferError(f"region {own.region_id} is registered for READ only")
        word = None if generation is None else (generation.region_id, generation.index)
        return Capability(
            region=region, grant=self._key.grant(own.region_id, ranges, operation, ttl_s, word)
        )

    def notifications(self, timeout_s: float = 0.0) -> list[Notification]:
        """Messages of batches whose data is here, oldest first; waits up to `timeout_s` for the first one."""
        return self._notifications.take(timeout_s)

    # Anyone's memory.

    def read(
        self,
        region: RegionRef,
        reads: Sequence[Read],
        *,
        generation: Generation | None = None,
        capability: Grant | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        """READ in the calling thread; on return every byte is in place and the generation was unchanged.

        Raises TransferError (StaleEpoch, StaleGeneration, BadCapability, out of range) or Unavailable (peer gone,
        timeout); what the local memory holds is then undefined.
        """
        deadline_s = time.monotonic() + timeout_s
        is_plain = generation is None and capability is None
        if is_plain and self._transports.read_quick(region, reads, deadline_s):
            return
        batch = ReadBatch(region, reads, generation, timeout_s, capability=capability)
        batch.deadline_s = deadline_s
        self.run(batch)

    def write(
        self,
        region: RegionRef,
        writes: Sequence[Write],
        *,
        notify: bytes | None = None,
        capability: Grant | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        """WRITE in the calling thread; on return every byte is readable at the target.

        Raises as `read` does, and NotOver when the target does not answer and could still land it: see there.
        """
        is_plain = notify is None and capability is None
        if is_plain and self._transports.write_quick(region, writes, timeout_s):
            return
        self.run(WriteBatch(region, writes, timeout_s, notify=notify, capability=capability))

    def run(self, batch: ReadBatch | WriteBatch) -> None:
        """`read` or `write` for a prepared batch: with a cancel flag, or a callback per read."""
        self._transports.run(batch)

    def mapped(self, region: RegionRef) -> tuple[ByteArray, Callable[[], bool]] | None:
        """Read-only memory of a peer on this host that was READ before, and a call that says whether it still is its.

        For many small looks: without a pin, a copy, or a check of bounds. What was seen counts only if the call says
        True afterwards, and where a checksum says so. None: READ it.
        """
        return self._transports.mapped(region)

    def view(self, region: RegionRef, ranges: Sequence[Strided], *, timeout_s: float = 5.0) -> View:
        """Look at a peer's shared region without a copy; the peer cannot deregister it until the view is closed.

        Raises TransferError where only a READ will do: private memory, another host, no daemon's role.
        """
        check_ranges(ranges, region.size_bytes)
        region_id = region.region_id
        if region.address.epoch == self.address.epoch:
            own = self._regions.pin(region_id)
            if own.device is not None:
                self._regions.unpin(region_id)
                raise TransferError(f"region {region_id} is memory of a GPU; READ it")
            return View(own.array, ranges, lambda: self._regions.unpin(region_id))
        peer, mapped = self._transports.pin(region, timeout_s)
        try:
            check_ranges(ranges, mapped.nbytes)
        except TransferError:
            peer.unpin(region_id)
            raise
        return View(mapped, ranges, lambda: peer.unpin(region_id))

    def paths(self, address: DataAddress) -> list[PathView]:
        """How the TCP addresses of a peer with several do; empty before the first transfer."""
        return self._transports.paths(address)

    def submit(self, batches: Sequence[ReadBatch | WriteBatch]) -> Handle:
        """Run batches one after the other on a thread of the engine, up to the first that fails."""
        return self._submissions.submit(batches)

    def wait(self, handle: Handle, timeout_s: float | None = None) -> None:
        handle.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the data port and all that is under way. Views of this process end with it."""
        self._submissions.close()
        self._server.close()
        self._transports.close()
        self._regions.close()
        self._unlink()

    def _own_id(self, region: RegionRef) -> int:
        """Regions of two processes may have the same number."""
        if region.address.epoch != self.address.epoch:
            raise TransferError(
                f"region {region.region_id} is of another process ({describe(region.address)}), or of an earlier "
                "life of this one: its owner alone grants and deregisters it"
            )
        return region.region_id

    def _open_transports(self, settings: TransportSettings) -> TransportTable:
        epoch = settings.epoch
        return TransportTable(
            settings,
            self._regions,
            LoopbackTransport({epoch: self._regions}, {epoch: self._notifications}),
            deliver=self._deliver,
            topology=lambda: self.topology,
        )

    def _address(self, epoch: Epoch, endpoints: Sequence[str]) -> DataAddress:
        return DataAddress(
            host_id=host_id(),
            unix_path=str(self._unix_path or ""),
            tcp=endpoints[0] if endpoints else "",
            tcp_more=list(endpoints[1:]),
            epoch=epoch,
            rdma=self._transports.rdma_endpoint,
        )

    def _service(self, settings: TransportSettings) -> Service:
        return Service(
            regions=self._regions,
            epoch=settings.epoch,
            rules=AccessRules(self._key, settings.credential, settings.is_guarded),
            notifications=self._notifications,
            pull=self._transports.pull,
        )

    def _unlink(self) -> None:
        if self._unix_path is not None:
            self._unix_path.unlink(missing_ok=True)

    def _deliver(self, region_id: int, message: bytes) -> bool:
        """A notification that came by RDMA; the others come by the data port."""
        self._regions.get(region_id)
        if len(message) > MAX_MESSAGE_BYTES:
            raise TransferError(f"a notification has at most {MAX_MESSAGE_BYTES} bytes")
        return self._notifications.put(Notification(region_id, message))
