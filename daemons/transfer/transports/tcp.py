"""READ from peers on other hosts, scattered straight into the caller's memory."""

import socket
import threading
from typing import ClassVar

from daemons.core.errors import TransferError
from daemons.protocol.segment import DataAddress
from daemons.transfer.transports.base import ReadBatch
from daemons.transfer.transports.stream import StreamPool


class TcpTransport:
    """One pool of connections per "host:port"."""

    scheme: ClassVar[str] = "tcp"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[str, StreamPool] = {}

    def reaches(self, address: DataAddress) -> bool:
        return bool(address.tcp)

    def read(self, batch: ReadBatch) -> None:
        self._pool(batch.region.address.tcp).read(batch)

    def close(self) -> None:
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    def _pool(self, endpoint: str) -> StreamPool:
        with self._lock:
            pool = self._pools.get(endpoint)
            if pool is None:
                host, port = split_endpoint(endpoint)
                pool = StreamPool(lambda timeout_s: _connect(host, port, timeout_s))
                self._pools[endpoint] = pool
            return pool


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """ "host:port", the host perhaps an IPv6 address in brackets."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise TransferError(f"data address {endpoint!r} is not host:port")
    return host.strip("[]"), int(port)


def _connect(host: str, port: int, timeout_s: float) -> socket.socket:
    sock = socket.create_connection((host, port), timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
