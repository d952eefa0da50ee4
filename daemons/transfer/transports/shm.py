"""Peers on the same host: their shared regions are mapped read-only and copied from, private memory is read across.

A WRITE is carried out by the target, which reads our memory in the same ways. What is left goes over its UNIX
socket, as do small WRITEs, where the bytes ride in the request.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from daemons.core.errors import ProtocolError, TransferError, Unavailable
from daemons.core.ids import HostId
from daemons.protocol.segment import DataAddress, RegionRef, Strided
from daemons.transfer.credentials import Credential
from daemons.transfer.device_memory import address_of, on_host
from daemons.transfer.regions import RegionTable
from daemons.transfer.strided import ByteArray, check_within, contiguous, copy
from daemons.transfer.transports import cross_memory, exchange, sockets, wire
from daemons.transfer.transports.base import Read, ReadBatch, Write, WriteBatch, describe, is_flat
from daemons.transfer.transports.landing import PullSource, encode_pull_source
from daemons.transfer.transports.runs import runs_of_writes
from daemons.transfer.transports.shm_peer import Private, ShmPeer

_WORD_BYTES = 8
_MAX_SENT = 64 << 10
"""A WRITE up to here goes over the socket: cheaper than having the target look up our memory."""


class ShmTransport:
    """Peers by socket path and epoch. One that restarted has a new epoch, so an old map is never read for it."""

    scheme: ClassVar[str] = "shm"

    def __init__(
        self, host: HostId, mine: RegionTable, credential: Credential | None = None
    ) -> None:
        self.local_address: DataAddress | None = None
        """Where peers find `mine`; None until the data port listens."""
        self._host = host
        self._mine = mine
        self._credential = credential
        self._lock = threading.Lock()
        self._peers: dict[tuple[str, int], ShmPeer] = {}

    def reaches(self, address: DataAddress) -> bool:
        return address.host_id == self._host and bool(address.unix_path)

    def read_mapped(self, region: RegionRef, read: Read) -> bool:
        """The short way for one contiguous READ of a peer it `reaches`; False when it needs the long way."""
        address = region.address
        peer = self._peers.get((address.unix_path, address.epoch))
        mapped = None if peer is None else peer.whole(region.region_id)
        remote, local, target = read
        if peer is None or mapped is None or not is_flat(local):
            return False
        offset, length, start = remote.offset, remote.row_bytes, target.offset
        if (
            not remote.num_rows == target.num_rows == 1
            or length != target.row_bytes
            or not 0 < length <= min(mapped.nbytes, region.size_bytes) - offset
            or not length <= local.nbytes - start
            or not local.flags.writeable
            or min(offset, start) < 0
        ):
            return False
        local[start : start + length] = mapped[offset : offset + length]  # numpy releases the GIL
        return sockets.is_open(peer.sock)

    def mapped(self, region: RegionRef) -> tuple[ByteArray, Callable[[], bool]] | None:
        """A peer's region that is mapped already, and whether the peer is still there: to be asked after each look."""
        peer = self._peers.get((region.address.unix_path, region.address.epoch))
        found = None if peer is None else peer.whole(region.region_id)
        if peer is None or found is None:
            return None
        return found, functools.partial(sockets.is_open, peer.sock)

    def read(self, batch: ReadBatch) -> None:
        for is_last in (False, True):
            peer = self._peer(batch.region.address, batch.patience_s())
            if not self._read_direct(peer, batch):
                peer.stream.read(batch)
                return
            if peer.is_alive():
                return
            # Its memory may have gone while it was copied.
            self._forget(peer)
            if is_last or batch.on_read is not None:
                break
        raise Unavailable(f"{describe(batch.region.address)} went away during a READ")

    def pull(self, batch: ReadBatch) -> bool:
        """READ without any work of the peer; False when this is not possible."""
        if not self.reaches(batch.region.address):
            return False
        peer = self._peer(batch.region.address, batch.remaining_s())
        is_done = self._read_direct(peer, batch)
        if is_done and not peer.is_alive():
            raise Unavailable(f"{describe(batch.region.address)} went away")
        return is_done

    def write_quick(self, region: RegionRef, writes: Sequence[Write], timeout_s: float) -> bool:
        """The short way for few bytes to a peer it `reaches`; False: it needs the long way."""
        address = region.address
        peer = self._peers.get((address.unix_path, address.epoch))
        runs = None if peer is None else runs_of_writes(region, writes)
        if peer is None or runs is None or runs.length > _MAX_SENT:
            return False
        return peer.stream.write_quick(region, runs, timeout_s)

    def write(self, batch: WriteBatch) -> None:
        peer = self._peer(batch.region.address, batch.remaining_s())
        if peer.can_pull and batch.length > _MAX_SENT:
            try:
                peer.stream.ask_to_pull(batch, self._sources(batch.writes))
            except exchange.Private:
                peer.can_pull = False
            else:
                return
        peer.stream.write(batch)

    def notify(self, batch: ReadBatch | WriteBatch, message: bytes) -> None:
        self._peer(batch.region.address, batch.remaining_s()).stream.notify(batch, message)

    def pin(self, region: RegionRef, timeout_s: float) -> tuple[ShmPeer, ByteArray]:
        """The mapped region, kept by its owner until `peer.unpin`. Raises TransferError where it cannot be mapped."""
        deadline_s = time.monotonic() + timeout_s
        try:
            peer, mapped = self._pin(region, deadline_s)
        except Unavailable as error:
            if not isinstance(error.__cause__, OSError):
                raise
            # The owner cut us off as it took another region away: what was pinned over that connection is not any more.
            peer, mapped = self._pin(region, deadline_s)
        if isinstance(mapped, Private):
            peer.unpin(region.region_id)
            raise TransferError(f"region {region.region_id} cannot be mapped here; READ it")
        return peer, mapped

    def close(self) -> None:
        with self._lock:
            peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close()

    def _pin(self, region: RegionRef, deadline_s: float) -> tuple[ShmPeer, ByteArray | Private]:
        peer = self._peer(region.address, deadline_s - time.monotonic())
        with self._losing(peer, region.address):
            peer.pin(region.region_id, deadline_s)
            return peer, peer.find(region.region_id, deadline_s)

    def _read_direct(self, peer: ShmPeer, batch: ReadBatch) -> bool:
        """By map or across; the caller looks whether the peer is still there afterwards."""
        with self._losing(peer, batch.region.address):
            until_s = time.monotonic() + batch.patience_s()
            source, words = peer.find(batch.region.region_id, until_s), None
            if batch.generation is not None:
                words = peer.find(batch.generation.region_id, until_s)
        if isinstance(words, Private):
            return False
        if isinstance(source, Private):
            return _read_across(peer, batch, source, words)
        _copy_all(batch, source, words)
        return True

    @contextmanager
    def _losing(self, peer: ShmPeer, address: DataAddress) -> Iterator[None]:
        """What goes wrong on the control socket ends the peer."""
        try:
            yield
        except ProtocolError:
            self._forget(peer)
            raise
        except OSError as error:
            self._forget(peer)
            raise Unavailable(f"{describe(address)} is gone: {error}") from error

    def _sources(self, writes: Sequence[Write]) -> list[bytes]:
        """For each request, where the target finds our memory: in a region that it can map, else by address."""
        region, base = self._mappable(writes)
        ranges = [_moved(w.source, address_of(w.local) - base) for w in writes]
        return [
            encode_pull_source(
                PullSource(region=region, ranges=ranges[start : start + wire.MAX_RANGES])
            )
            for start in range(0, len(ranges), wire.MAX_RANGES)
        ]

    def _mappable(self, writes: Sequence[Write]) -> tuple[RegionRef | None, int]:
        """The shared region that holds all of it, and its address."""
        found = self._mine.containing([on_host(write.local) for write in writes])
        if found is None or found.fd is None or self.local_address is None:
            return None, 0
        region = RegionRef(
            address=self.local_address, region_id=found.region_id, size_bytes=found.size_bytes
        )
        return region, found.address

    def _peer(self, address: DataAddress, timeout_s: float) -> ShmPeer:
        key = (address.unix_path, address.epoch)
        peer = self._peers.get(key)
        if peer is not None and peer.is_alive():
            return peer
        with self._lock:
            self._drop_dead()
            peer = self._peers.get(key)
            if peer is None:
                peer = ShmPeer.connect(address, self._credential, timeout_s)
                self._peers[key] = peer
            return peer

    def _drop_dead(self) -> None:
        """Also frees the memory of peers nobody asks for any more."""
        for key, peer in list(self._peers.items()):
            if not peer.is_alive():
                del self._peers[key]
                peer.close()

    def _forget(self, peer: ShmPeer) -> None:
        with self._lock:
            for key, other in list(self._peers.items()):
                if other is peer:
                    del self._peers[key]
        peer.close()


def _moved(ranges: Strided, offset: int) -> Strided:
    return Strided(
        offset=ranges.offset + offset,
        row_bytes=ranges.row_bytes,
        num_rows=ranges.num_rows,
        stride_bytes=ranges.stride_bytes,
    )


def _read_across(peer: ShmPeer, batch: ReadBatch, source: Private, words: ByteArray | None) -> bool:
    if source.address is None or not all(
        cross_memory.fits(r.remote, r.target) for r in batch.reads
    ):
        return False
    _check_size(batch, source.size_bytes)
    _check_generation(batch, words)
    memory = cross_memory.ForeignMemory(peer.pid, source.address)
    try:
        for index, (remote, local, target) in enumerate(batch.reads):
            cross_memory.read(memory, remote, on_host(local), target, batch.remaining_s)
            batch.finish(index)
    except OSError as error:
        raise Unavailable(f"{describe(batch.region.address)} is gone: {error}") from error
    _check_generation(batch, words)
    return True


def _copy_all(batch: ReadBatch, region: ByteArray, words: ByteArray | None) -> None:
    _check_size(batch, region.nbytes)
    _check_generation(batch, words)
    for index, read in enumerate(batch.reads):
        batch.remaining_s()
        copy(region, read.remote, on_host(read.local), read.target)
        batch.finish(index)
    _check_generation(batch, words)


def _check_size(batch: ReadBatch, size_bytes: int) -> None:
    if batch.region.size_bytes > size_bytes:
        raise TransferError(
            f"region {batch.region.region_id} has {size_bytes} bytes, not {batch.region.size_bytes}"
        )


def _check_generation(batch: ReadBatch, words: ByteArray | None) -> None:
    if words is None or batch.generation is None:
        return
    start = batch.generation.index * _WORD_BYTES
    check_within(contiguous(start, _WORD_BYTES), words.nbytes, "the generation table")
    batch.check_generation(int(words[start : start + _WORD_BYTES].view("<u8")[0]))
