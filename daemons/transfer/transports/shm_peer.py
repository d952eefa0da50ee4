"""What we hold of one process on this host: its control socket, maps of its regions, and pins of our views.

The control socket stays open: when it ends the peer died or took a region away, and every map is dropped. A copy
counts only if the socket was still open after it.
"""

import contextlib
import fcntl
import mmap
import os
import queue
import socket
import threading
import time
from dataclasses import dataclass, field

import numpy as np

from daemons.core.errors import ProtocolError, TransferError, Unavailable
from daemons.core.units import MIB
from daemons.protocol.segment import DataAddress
from daemons.transfer.capability import BadCapability
from daemons.transfer.credentials import Credential
from daemons.transfer.prefault import prefault_in_background
from daemons.transfer.strided import ByteArray
from daemons.transfer.transports import cross_memory, sockets, wire
from daemons.transfer.transports.access import authenticate
from daemons.transfer.transports.base import StaleEpoch, Unreachable, describe
from daemons.transfer.transports.stream import StreamPool

UNPIN_AFTER_S = 0.01
"""After the last view: who looks again and again pays for one pin each so often."""

_PREFAULT_BYTES = MIB
_FREED_AT_ONCE_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Private:
    """Memory of the peer that cannot be mapped. `address` None: it must be streamed."""

    address: int | None
    size_bytes: int


@dataclass(slots=True)
class ShmPeer:
    """What this process holds of another one on the host. `lock` guards the maps; the connection pins them all."""

    address: DataAddress
    sock: socket.socket
    pid: int
    stream: StreamPool
    lock: threading.Lock = field(default_factory=threading.Lock)
    maps: dict[int, ByteArray] = field(default_factory=dict)
    files: dict[int, int] = field(default_factory=dict)
    """Descriptors of those that lie in files, which cannot be sealed: somebody may cut one short."""
    private: dict[int, Private] = field(default_factory=dict)
    views: dict[int, int] = field(default_factory=dict)
    """How many show a region; each in here has one pin at its owner, until it is seen to have no view."""
    ended: "queue.SimpleQueue[int | None]" = field(default_factory=queue.SimpleQueue)
    """A region for each view that ended; None: there will be no more."""
    unpinner: threading.Thread | None = None
    closed: threading.Event = field(default_factory=threading.Event)
    can_pull: bool = True
    """Whether it could read our memory so far."""

    @classmethod
    def connect(
        cls, address: DataAddress, credential: Credential | None, timeout_s: float
    ) -> "ShmPeer":
        path = address.unix_path

        def open_socket(timeout_s: float) -> socket.socket:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.settimeout(timeout_s)
                sock.connect(path)
            except OSError:
                sock.close()
                raise
            return sock

        try:
            sock = open_socket(min(timeout_s, 2.0))
        except (OSError, ValueError) as error:  # ValueError: a path that can be no address
            raise Unreachable(f"cannot connect to {path!r}: {error}") from error
        try:
            if credential is not None:
                authenticate(sock, address.epoch, credential)
            sockets.prepare(sock, send_timeout_s=sockets.TICK_S, receive_timeout_s=sockets.TICK_S)
            pid, _ = sockets.peer_credentials(sock)
        except (OSError, ProtocolError) as error:
            sock.close()
            raise Unreachable(f"{describe(address)} does not let us in: {error}") from error
        return cls(address, sock, pid, StreamPool(open_socket, credential))

    def is_alive(self) -> bool:
        return not self.closed.is_set() and sockets.is_open(self.sock)

    def find(self, region_id: int, deadline_s: float) -> ByteArray | Private:
        """The peer's region, mapped once. Raises OSError when the peer is gone."""
        if region_id not in self.maps:
            with self.lock:
                if region_id not in self.maps and region_id not in self.private:
                    self._map(region_id, deadline_s)
            if region_id in self.private:
                return self.private[region_id]
        found = self.whole(region_id)
        if found is None:
            raise ConnectionAbortedError(f"the file of its region {region_id} was cut short")
        return found

    def whole(self, region_id: int) -> ByteArray | None:
        """What is mapped. None too for a file that was cut short: a look at what is gone would end this process."""
        mapped, file = self.maps.get(region_id), self.files.get(region_id)
        if mapped is None or file is None:
            return mapped
        try:
            return mapped if os.lseek(file, 0, os.SEEK_END) >= mapped.nbytes else None
        except OSError:  # closed meanwhile
            return None

    def pin(self, region_id: int, deadline_s: float) -> None:
        """For one more view. Those of one region share a pin at the owner, and so does the next one a moment later."""
        with self.lock:
            if region_id not in self.views:
                frame, _ = self._exchange(wire.Op.PIN, region_id, deadline_s)
                self._check(frame, deadline_s)
                self.views[region_id] = 0
                if self.unpinner is None:
                    self.unpinner = threading.Thread(
                        target=self._unpin_late, name="mc-unpin", daemon=True
                    )
                    self.unpinner.start()
            self.views[region_id] += 1

    def unpin(self, region_id: int) -> None:
        """A view ended. Takes no lock: the garbage collector may call it anywhere."""
        self.ended.put(region_id)

    def close(self) -> None:
        self.closed.set()
        self.ended.put(None)
        if self.unpinner is not None:
            self.unpinner.join(1.0)
        self.sock.close()
        self.stream.close()
        with self.lock:
            files, self.files = self.files, {}
        for file in files.values():
            os.close(file)
        maps, self.maps = self.maps, {}
        _free(maps)

    def _unpin_late(self) -> None:
        """A thread of its own. Where the peer is gone there is nothing to do: the pins went with the socket."""
        while (first := self.ended.get()) is not None:
            self.closed.wait(UNPIN_AFTER_S)
            try:
                with self.lock:
                    self._end_views(first)
            except (OSError, TransferError, ProtocolError, Unavailable):
                sockets.shut(self.sock)

    def _end_views(self, first: int) -> None:
        """And those that ended since; what is not shown any more is the owner's to deregister."""
        ended: list[int | None] = [first]
        with contextlib.suppress(queue.Empty):
            while ended[-1] is not None:
                ended.append(self.ended.get_nowait())
        if ended[-1] is None:
            self.ended.put(None)
        if self.closed.is_set():
            return
        for region_id in ended:
            if region_id is not None:
                self.views[region_id] -= 1
        deadline_s = time.monotonic() + 1.0
        for region_id in [each for each, count in self.views.items() if not count]:
            del self.views[region_id]
            frame, _ = self._exchange(wire.Op.UNPIN, region_id, deadline_s)
            self._check(frame, deadline_s)

    def _map(self, region_id: int, deadline_s: float) -> None:
        frame, descriptors = self._exchange(wire.Op.MAP, region_id, deadline_s)
        try:
            status, length, word = self._check(frame, deadline_s)
            if status == wire.Status.PRIVATE:
                is_readable = bool(word and self.pid) and cross_memory.is_permitted(self.pid, word)
                self.private[region_id] = Private(word if is_readable else None, length)
                return
            if len(descriptors) != 1:
                raise ProtocolError(f"{describe(self.address)} sent no descriptor of its memory")
            mapped = map_read_only(descriptors[0], length)
            if not _is_sealed(descriptors[0]):
                self.files[region_id] = os.dup(descriptors[0])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if mapped.nbytes >= _PREFAULT_BYTES:
            prefault_in_background(mapped, self.closed)
        self.maps[region_id] = mapped

    def _exchange(self, op: wire.Op, region_id: int, deadline_s: float) -> tuple[bytes, list[int]]:
        self.sock.sendall(wire.encode_request(wire.Request(op, self.address.epoch, region_id)))
        while True:
            try:
                frame, descriptors, _, _ = socket.recv_fds(self.sock, wire.REPLY.size, 1)
            except BlockingIOError:
                self._check_time(deadline_s)
                continue
            return frame, descriptors

    def _check(self, frame: bytes, deadline_s: float) -> tuple[int, int, int]:
        name = describe(self.address)
        if not frame:
            raise ConnectionResetError("the peer closed the connection")
        if len(frame) != wire.REPLY.size or not frame.startswith(wire.MAGIC):
            raise ProtocolError(f"{name} does not speak the data protocol")
        _, status, length, word = wire.REPLY.unpack(frame)
        if status in (wire.Status.OK, wire.Status.PRIVATE):
            return status, length, word
        self._check_time(deadline_s)
        message = f"{name}: {self.sock.recv(min(length, 1024)).decode(errors='replace')}"
        if status == wire.Status.FORBIDDEN:
            raise BadCapability(message)
        raise (StaleEpoch if status == wire.Status.STALE_EPOCH else TransferError)(message)

    def _check_time(self, deadline_s: float) -> None:
        if time.monotonic() >= deadline_s:
            sockets.shut(self.sock)  # the answer may come later, and must not be taken for another
            raise Unavailable(f"{describe(self.address)} does not answer")


def map_read_only(descriptor: int, size_bytes: int) -> ByteArray:
    """Map what a peer sent after making sure that no access to it can fault.

    A memfd must be sealed against shrinking. A file on a tmpfs cannot be sealed: it must be there in full,
    and our descriptors of it cannot truncate; its owner only ever unlinks it, and `ShmPeer.whole` looks at its size.
    """
    status = os.fstat(descriptor)
    is_whole = status.st_size >= size_bytes and status.st_blocks * 512 >= size_bytes
    if size_bytes <= 0 or not is_whole or not (_is_sealed(descriptor) or status.st_nlink):
        raise TransferError(
            f"a peer's region of {size_bytes} bytes is not fully there (file of {status.st_size}); not mapped"
        )
    return np.frombuffer(mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ), np.uint8)


def _is_sealed(descriptor: int) -> bool:
    """Against shrinking."""
    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False


def _free(maps: dict[int, ByteArray]) -> None:
    """Ours may be the last map of a dead peer's pages: whoever waits for the error would wait for a millisecond a MiB
    until the kernel has freed them.
    """
    if sum([mapped.nbytes for mapped in maps.values()]) >= _FREED_AT_ONCE_BYTES:
        # There may be too many threads, and none begins while the interpreter ends.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=maps.clear, name="mc-unmap", daemon=True).start()
            return
    maps.clear()
