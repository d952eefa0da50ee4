"""Peers on other hosts: scattered into and gathered from memory in place; large batches over several streams."""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from daemons.core.errors import TransferError
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.transfer.transports import sockets
from daemons.transfer.transports.base import Read, ReadBatch, WriteBatch
from daemons.transfer.transports.stream import StreamPool
from daemons.transfer.transports.stripes import B, cut_reads, cut_writes, run_parts

_MIN_STRIPE_BYTES = 2 << 20
_MAX_STREAMS = 4
_MAX_POOLS = 128
_NUM_WORKERS = 16


def streams_for(length: int, num_streams: int | None = None) -> int:
    """Connections that a batch of so many bytes uses. More than the CPUs only make the two ends take turns."""
    limit = num_streams or min(_MAX_STREAMS, max(1, os.cpu_count() or 1))
    return max(1, min(limit, length // _MIN_STRIPE_BYTES))


class TcpTransport:
    """One pool of connections for each life of each "host:port"."""

    scheme: ClassVar[str] = "tcp"

    def __init__(self, secret: bytes | None = None, num_streams: int | None = None) -> None:
        self._secret = secret
        self._num_streams = num_streams
        self._lock = threading.Lock()
        self._pools: dict[tuple[str, int], StreamPool] = {}
        self._workers: ThreadPoolExecutor | None = None

    def reaches(self, address: DataAddress) -> bool:
        return bool(address.tcp)

    def read_quick(self, region: RegionRef, read: Read, timeout_s: float) -> bool:
        """The short way for one contiguous READ over one stream; False: it needs the long one."""
        address, (remote, local, target) = region.address, read
        pool = self._pools.get((address.tcp, address.epoch))
        length, start = remote.row_bytes, target.offset
        if (
            pool is None
            or not 0 < length < 2 * _MIN_STRIPE_BYTES
            or not remote.num_rows == target.num_rows == 1
            or length != target.row_bytes
            or not 0 <= remote.offset <= region.size_bytes - length
            or not 0 <= start <= local.nbytes - length
            or not local.flags.writeable
        ):
            return False
        deadline_s = time.monotonic() + timeout_s
        return pool.read_quick(region, remote, local.data[start : start + length], deadline_s)

    def read(self, batch: ReadBatch) -> None:
        pool = self._pool(batch.region.address)
        length = 0 if batch.on_read else sum(read.remote.length for read in batch.reads)
        self._run(batch, pool, length, pool.read, cut_reads)
        # One stream reports by itself.
        if self._is_striped(length) and batch.progress is not None:
            for index in range(len(batch.reads)):
                batch.progress(index)

    def write(self, batch: WriteBatch) -> None:
        pool = self._pool(batch.region.address)
        self._run(batch, pool, batch.length, pool.write, cut_writes)
        if self._is_striped(batch.length):
            for index in range(len(batch.writes)):
                batch.finish(index)

    def notify(self, batch: ReadBatch | WriteBatch, message: bytes) -> None:
        self._pool(batch.region.address).notify(batch, message)

    def close(self) -> None:
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()
        if self._workers is not None:
            self._workers.shutdown()

    def _is_striped(self, length: int) -> bool:
        return streams_for(length, self._num_streams) > 1

    def _run(
        self,
        batch: B,
        pool: StreamPool,
        length: int,
        run: Callable[[B], None],
        cut: Callable[[B, int], Sequence[B]],
    ) -> None:
        if not self._is_striped(length):
            run(batch)
            return
        parts = cut(batch, streams_for(length, self._num_streams))
        run_parts(batch, parts, run, self._striping())

    def _striping(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._workers is None:
                self._workers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="mc-stripe")
            return self._workers

    def _pool(self, address: DataAddress) -> StreamPool:
        key = (address.tcp, address.epoch)
        pool = self._pools.get(key)
        if pool is not None:
            return pool
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                host, port = split_endpoint(address.tcp)
                pool = StreamPool(lambda timeout_s: _connect(host, port, timeout_s), self._secret)
                self._drop_old(address.tcp)
                self._pools[key] = pool
            return pool

    def _drop_old(self, endpoint: str) -> None:
        """Pools of earlier lives of this address, and the least used one when there are many."""
        old = [key for key in self._pools if key[0] == endpoint]
        if len(self._pools) - len(old) >= _MAX_POOLS:
            old.append(min(self._pools, key=lambda key: self._pools[key].last_used_s))
        for key in old:
            pool = self._pools.pop(key, None)
            if pool is not None:
                pool.close()


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """ "host:port", the host perhaps an IPv6 address in brackets."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise TransferError(f"data address {endpoint!r} is not host:port")
    return host.strip("[]"), int(port)


def _connect(host: str, port: int, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sockets.set_buffers(sock)
        sock.settimeout(timeout_s)
        sock.connect((host, port))
    except OSError:
        sock.close()
        raise
    return sock
