"""READ from peers on the same host: their regions are mapped read-only and copied from directly.

The owner hands out descriptors over its UNIX socket. That connection stays open: when it ends the peer died or
took a region away, and every map of it is dropped. Memory the peer cannot share is streamed over the same socket.
"""

import fcntl
import mmap
import os
import socket
import threading
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from daemons.core.errors import ProtocolError, TransferError, Unavailable
from daemons.core.ids import HostId
from daemons.core.units import MIB
from daemons.protocol.segment import DataAddress
from daemons.transfer.prefault import prefault_in_background
from daemons.transfer.strided import ByteArray, check_within, contiguous, copy
from daemons.transfer.transports import wire
from daemons.transfer.transports.base import ReadBatch, StaleEpoch, Unreachable, describe
from daemons.transfer.transports.stream import StreamPool

_WORD_BYTES = 8
_PREFAULT_BYTES = MIB


class ShmTransport:
    """Maps by peer and epoch. A peer that restarted has a new epoch, so an old map is never read for it."""

    scheme: ClassVar[str] = "shm"

    def __init__(self, host: HostId) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._peers: dict[tuple[str, int], _Peer] = {}

    def reaches(self, address: DataAddress) -> bool:
        return address.host_id == self._host and bool(address.unix_path)

    def read(self, batch: ReadBatch) -> None:
        peer = self._peer(batch)
        try:
            region, words = peer.map(batch, batch.region.region_id), None
            if batch.generation is not None:
                words = peer.map(batch, batch.generation.region_id)
        except ProtocolError:
            self._forget(peer)
            raise
        except OSError as error:
            self._forget(peer)
            raise Unavailable(f"{describe(batch.region.address)} is gone: {error}") from error
        if region is None or (batch.generation is not None and words is None):
            peer.stream.read(batch)
        else:
            _copy_all(batch, region, words)

    def close(self) -> None:
        with self._lock:
            peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close()

    def _peer(self, batch: ReadBatch) -> "_Peer":
        address = batch.region.address
        key = (address.unix_path, address.epoch)
        peer = self._peers.get(key)
        if peer is not None and peer.is_alive():
            return peer
        with self._lock:
            self._drop_dead()
            peer = self._peers.get(key)
            if peer is None:
                peer = _Peer.connect(batch)
                self._peers[key] = peer
            return peer

    def _drop_dead(self) -> None:
        """Also frees the memory of peers nobody asks for any more."""
        for key, peer in list(self._peers.items()):
            if not peer.is_alive():
                del self._peers[key]
                peer.close()

    def _forget(self, peer: "_Peer") -> None:
        with self._lock:
            for key, other in list(self._peers.items()):
                if other is peer:
                    del self._peers[key]
        peer.close()


@dataclass(slots=True)
class _Peer:
    sock: socket.socket
    stream: StreamPool
    lock: threading.Lock = field(default_factory=threading.Lock)
    maps: dict[int, ByteArray | None] = field(default_factory=dict)
    """None: the region is private."""
    closed: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def connect(cls, batch: ReadBatch) -> "_Peer":
        path = batch.region.address.unix_path

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
            sock = open_socket(min(batch.remaining_s(), 2.0))
        except (OSError, ValueError) as error:  # ValueError: a path that can be no address
            raise Unreachable(f"cannot connect to {path!r}: {error}") from error
        sock.setblocking(False)  # with a timeout, Python would wait before it looks
        return cls(sock, StreamPool(open_socket))

    def is_alive(self) -> bool:
        """Must not wait: a peer that is being asked for a map counts as alive until that fails."""
        if not self.lock.acquire(blocking=False):
            return True
        try:
            return self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            self.lock.release()

    def map(self, batch: ReadBatch, region_id: int) -> ByteArray | None:
        """The peer's region, mapped once; None when it must be streamed."""
        try:
            return self.maps[region_id]
        except KeyError:
            with self.lock:
                if region_id not in self.maps:
                    self.maps[region_id] = self._ask(batch, region_id)
                return self.maps[region_id]

    def close(self) -> None:
        self.closed.set()
        self.sock.close()
        self.stream.close()
        self.maps.clear()

    def _ask(self, batch: ReadBatch, region_id: int) -> ByteArray | None:
        epoch = batch.region.address.epoch
        request = wire.Request(
            op=wire.Op.MAP, epoch=epoch, region_id=region_id, generation=None, ranges=()
        )
        descriptors: list[int] = []
        self.sock.settimeout(batch.remaining_s())
        try:
            self.sock.sendall(wire.encode_request(request))
            frame, descriptors, _, _ = socket.recv_fds(self.sock, wire.REPLY.size, 1)
            return self._parse(batch, frame, descriptors)
        finally:
            self.sock.setblocking(False)
            for descriptor in descriptors:
                os.close(descriptor)

    def _parse(self, batch: ReadBatch, frame: bytes, descriptors: list[int]) -> ByteArray | None:
        name = describe(batch.region.address)
        if not frame:
            raise ConnectionResetError("the peer closed the connection")
        if len(frame) != wire.REPLY.size or not frame.startswith(wire.MAGIC):
            raise ProtocolError(f"{name} does not speak the data protocol")
        _, status, length, _ = wire.REPLY.unpack(frame)
        if status == wire.Status.PRIVATE:
            return None
        if status == wire.Status.OK and len(descriptors) == 1:
            mapped = map_read_only(descriptors[0], length)
            if mapped.nbytes >= _PREFAULT_BYTES:
                prefault_in_background(mapped, self.closed)
            return mapped
        message = f"{name}: {self.sock.recv(min(length, 1024)).decode(errors='replace')}"
        raise (StaleEpoch if status == wire.Status.STALE_EPOCH else TransferError)(message)


def map_read_only(descriptor: int, size_bytes: int) -> ByteArray:
    """Map what a peer sent after making sure that no access to it can fault.

    A memfd must be sealed against shrinking. A file on a tmpfs cannot be sealed: it must be there in full,
    and our descriptors of it cannot truncate; its owner only ever unlinks it.
    """
    status = os.fstat(descriptor)
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    is_whole = status.st_size >= size_bytes and status.st_blocks * 512 >= size_bytes
    if size_bytes <= 0 or not is_whole or not (seals & fcntl.F_SEAL_SHRINK or status.st_nlink):
        raise TransferError(
            f"a peer's region of {size_bytes} bytes is not fully there (file of {status.st_size}); not mapped"
        )
    return np.frombuffer(mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ), np.uint8)


def _copy_all(batch: ReadBatch, region: ByteArray, words: ByteArray | None) -> None:
    if batch.region.size_bytes > region.nbytes:
        raise TransferError(
            f"region {batch.region.region_id} has {region.nbytes} bytes, not {batch.region.size_bytes}"
        )
    _check_generation(batch, words)
    for index, read in enumerate(batch.reads):
        batch.remaining_s()
        copy(region, read.remote, read.local, read.target)
        batch.finish(index)
    _check_generation(batch, words)


def _check_generation(batch: ReadBatch, words: ByteArray | None) -> None:
    if words is None or batch.generation is None:
        return
    start = batch.generation.index * _WORD_BYTES
    check_within(contiguous(start, _WORD_BYTES), words.nbytes, "the generation table")
    batch.check_generation(int(words[start : start + _WORD_BYTES].view("<u8")[0]))
