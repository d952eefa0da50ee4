"""Peers on other hosts: scattered into and gathered from memory in place; large batches over several streams.

A peer with several addresses has a pool for each, and its batches are spread over them (paths.py).
"""

import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from daemons.core.errors import TransferError
from daemons.core.units import parse_whole
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.transfer.credentials import Credential
from daemons.transfer.memory import host_id
from daemons.transfer.path_record import PathView
from daemons.transfer.slices import slice_bytes
from daemons.transfer.transports import sockets
from daemons.transfer.transports.base import Read, ReadBatch, Write, WriteBatch
from daemons.transfer.transports.paths import CONNECT_TIMEOUT_S, Paths
from daemons.transfer.transports.runs import runs_of_reads, runs_of_writes
from daemons.transfer.transports.stream import StreamPool
from daemons.transfer.transports.stripes import B, cut_reads, cut_writes, run_parts

_MIN_STRIPE_BYTES = 4 << 20
_NUM_STREAMS = min(4, os.cpu_count() or 1)
_NUM_LOCAL_STREAMS = max(1, _NUM_STREAMS // 2)
"""Within a host both ends of a stream want a CPU."""
_MAX_PEERS = 128
_MAX_PATHS = 16
_NUM_WORKERS = 16


def streams_for(
    length: int, num_streams: int | None = None, *, is_within_host: bool = False
) -> int:
    """Connections that a batch of so many bytes uses. More than the CPUs only make the two ends take turns."""
    usual = _NUM_LOCAL_STREAMS if is_within_host else _NUM_STREAMS
    return max(1, min(num_streams or usual, length // _MIN_STRIPE_BYTES))


class TcpTransport:
    """One pool of connections, or one set of paths, for each life of each peer, which goes by its first address."""

    scheme: ClassVar[str] = "tcp"

    def __init__(
        self,
        credential: Credential | None = None,
        num_streams: int | None = None,
        link_speed: Callable[[str], float | None] = lambda _endpoint: None,
    ) -> None:
        """`link_speed`: bytes a second of the link that leads to "host:port", None where nobody knows."""
        self._credential = credential
        self._link_speed = link_speed
        self._num_streams = num_streams
        self._host_id = host_id()
        self._lock = threading.Lock()
        self._peers: dict[tuple[str, int], StreamPool | Paths] = {}
        self._workers: ThreadPoolExecutor | None = None

    def reaches(self, address: DataAddress) -> bool:
        return bool(address.tcp)

    def read_quick(self, region: RegionRef, reads: Sequence[Read], deadline_s: float) -> bool:
        """The short way for a batch of runs over one stream; False: it needs the long one."""
        address = region.address
        pool = self._peers.get((address.tcp, address.epoch))
        if not isinstance(pool, StreamPool):
            return False
        runs = runs_of_reads(region, reads)
        if runs is None or runs.length >= 2 * _MIN_STRIPE_BYTES:
            return False
        return pool.read_quick(runs, deadline_s)

    def write_quick(self, region: RegionRef, writes: Sequence[Write], timeout_s: float) -> bool:
        """The same for WRITEs."""
        address = region.address
        pool = self._peers.get((address.tcp, address.epoch))
        if not isinstance(pool, StreamPool):
            return False
        runs = runs_of_writes(region, writes)
        if runs is None or runs.length >= 2 * _MIN_STRIPE_BYTES:
            return False
        return pool.write_quick(region, runs, timeout_s)

    def read(self, batch: ReadBatch) -> None:
        # Reads that report as they come are done in order, on one stream.
        length = 0 if batch.on_read else batch.length
        num_parts = self._run(batch, length, StreamPool.read, cut_reads)
        # One stream reports by itself.
        if num_parts > 1 and batch.progress is not None:
            for index in range(len(batch.reads)):
                batch.progress(index)

    def write(self, batch: WriteBatch) -> None:
        num_parts = self._run(batch, batch.length, StreamPool.write, cut_writes)
        if num_parts > 1:
            for index in range(len(batch.writes)):
                batch.finish(index)

    def notify(self, batch: ReadBatch | WriteBatch, message: bytes) -> None:
        peer = self._peer(batch.region.address)
        if isinstance(peer, StreamPool):
            peer.notify(batch, message)
            return
        bare = WriteBatch(batch.region, [], batch.remaining_s(), batch.cancelled, batch.capability)
        peer.run(
            bare,
            [dataclasses.replace(bare)],
            lambda pool, part: pool.notify(part, message),
            workers=self._striping(),
            may_repeat=False,
        )

    def views(self, address: DataAddress) -> list[PathView]:
        """Of a peer with several addresses that was asked for something."""
        peer = self._peers.get((address.tcp, address.epoch))
        return peer.views() if isinstance(peer, Paths) else []

    def close(self) -> None:
        with self._lock:
            peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close()
        if self._workers is not None:
            self._workers.shutdown()

    def _run(
        self,
        batch: B,
        length: int,
        run: Callable[[StreamPool, B], None],
        cut: Callable[[B, int], Sequence[B]],
    ) -> int:
        """The number of parts that it was cut into; 1 for a batch that was carried as it is."""
        peer = self._peer(batch.region.address)
        if isinstance(peer, Paths):
            num_parts = length // slice_bytes(length, peer.num_paths)
            parts = cut(batch, num_parts) if num_parts > 1 else [dataclasses.replace(batch)]
            may_repeat = not (isinstance(batch, ReadBatch) and batch.on_read)
            peer.run(batch, parts, run, workers=self._striping(), may_repeat=may_repeat)
            return len(parts)
        is_within_host = batch.region.address.host_id == self._host_id
        num_streams = streams_for(length, self._num_streams, is_within_host=is_within_host)
        if num_streams == 1:
            run(peer, batch)
            return 1
        parts = cut(batch, num_streams)
        run_parts(batch, parts, lambda part: run(peer, part), self._striping())
        return num_streams

    def _striping(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._workers is None:
                self._workers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="mc-stripe")
            return self._workers

    def _peer(self, address: DataAddress) -> StreamPool | Paths:
        key = (address.tcp, address.epoch)
        peer = self._peers.get(key)
        if peer is not None:
            return peer
        with self._lock:
            peer = self._peers.get(key)
            if peer is None:
                peer = self._open(address)
                self._drop_old(address.tcp)
                self._peers[key] = peer
            return peer

    def _open(self, address: DataAddress) -> StreamPool | Paths:
        if not address.tcp_more:
            return StreamPool(_connector(address.tcp), self._credential)
        endpoints = (address.tcp, *address.tcp_more)[:_MAX_PATHS]
        pools = {
            endpoint: StreamPool(
                _connector(endpoint),
                self._credential,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                has_names=True,
            )
            for endpoint in endpoints
        }
        return Paths(pools, {endpoint: self._link_speed(endpoint) for endpoint in endpoints})

    def _drop_old(self, endpoint: str) -> None:
        """Earlier lives of this address, and the least used peer when there are many."""
        old = [key for key in self._peers if key[0] == endpoint]
        if len(self._peers) - len(old) >= _MAX_PEERS:
            old.append(min(self._peers, key=lambda key: self._peers[key].last_used_s))
        for key in old:
            peer = self._peers.pop(key, None)
            if peer is not None:
                peer.close()


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """ "host:port", the host perhaps an IPv6 address in brackets."""
    host, _, port = endpoint.rpartition(":")
    number = parse_whole(port)
    if not host or number is None or number > 65535:
        raise TransferError(f"data address {endpoint!r} is not host:port")
    return host.strip("[]"), number


def _connector(endpoint: str) -> Callable[[float], socket.socket]:
    host, port = split_endpoint(endpoint)
    return lambda timeout_s: _connect(host, port, timeout_s)


def _connect(host: str, port: int, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sockets.set_buffers_towards(sock, host, port)
        sock.settimeout(timeout_s)
        sock.connect((host, port))
    except OSError:
        sock.close()
        raise
    return sock
