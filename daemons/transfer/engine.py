"""The Transfer Engine of one process: its regions, its data port, and READs from anyone's regions.

Transports are tried in order of reach: own memory, a mapped region on this host, TCP. Only READ exists; the owner
of memory is the only one who writes it.
"""

import dataclasses
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

from daemons.core.errors import ConfigError, Unavailable
from daemons.core.ids import Epoch
from daemons.protocol.segment import DataAddress, Generation, RegionRef
from daemons.transfer.memory import Buffer, RegionTable, SharedMemory, host_id
from daemons.transfer.transports.base import Read, ReadBatch, Transport, Unreachable, describe
from daemons.transfer.transports.loopback import LoopbackTransport
from daemons.transfer.transports.server import DataServer, ServerCounters
from daemons.transfer.transports.shm import ShmTransport
from daemons.transfer.transports.tcp import TcpTransport

_TRANSPORTS: dict[str, Callable[[], Transport]] = {
    "shm": lambda: ShmTransport(host_id()),
    "tcp": TcpTransport,
}
_NUM_SUBMIT_WORKERS = 2
_MAX_UNIX_PATH = 107


class Handle:
    """A submitted batch list. Local memory may be reused once `wait` has returned or raised, not before."""

    def __init__(self, future: Future[None], cancelled: threading.Event) -> None:
        self._future = future
        self._cancelled = cancelled

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def cancel(self) -> None:
        """Ask it to stop; `wait` then raises TransferError, unless it was done before."""
        self._cancelled.set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Raise what went wrong; `Unavailable` when it still runs after `timeout_s`."""
        try:
            self._future.result(timeout_s)
        except FutureTimeoutError as error:
            raise Unavailable(f"transfer still runs after {timeout_s:g} s") from error


class TransferEngine:
    """Data plane of one process. Thread safe. `unix_dir` None or no "shm" among `transports`: TCP only."""

    def __init__(
        self,
        *,
        epoch: Epoch,
        bind_host: str = "127.0.0.1",
        tcp_port: int = 0,
        unix_dir: Path | None = None,
        transports: Sequence[str] = ("shm", "tcp"),
    ) -> None:
        unknown = [scheme for scheme in transports if scheme not in _TRANSPORTS]
        if unknown:
            raise ConfigError(f"transport {unknown[0]!r} is not one of {', '.join(_TRANSPORTS)}")
        self._regions = RegionTable()
        self._transports: list[Transport] = [LoopbackTransport({epoch: self._regions})]
        self._transports += [_TRANSPORTS[scheme]() for scheme in transports]
        self._unix_path = unix_dir / f"{epoch:x}.sock" if unix_dir and "shm" in transports else None
        listeners, tcp_endpoint = _listen(
            (bind_host, tcp_port) if "tcp" in transports else None, self._unix_path
        )
        self.address = DataAddress(
            host_id=host_id(),
            unix_path=str(self._unix_path or ""),
            tcp=tcp_endpoint,
            epoch=epoch,
        )
        self._server = DataServer(self._regions, epoch, listeners)
        self._submit_workers: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    @property
    def counters(self) -> ServerCounters:
        """What the data port has seen."""
        return self._server.counters

    def register(self, memory: SharedMemory | Buffer) -> RegionRef:
        """Let peers READ this memory. It stays the caller's; it must live until `deregister`."""
        region = self._regions.register(memory)
        return RegionRef(
            address=self.address, region_id=region.region_id, size_bytes=region.size_bytes
        )

    def deregister(self, region: RegionRef) -> None:
        """Peers that mapped it notice before their next READ."""
        self._regions.deregister(region.region_id)
        self._server.forget(region.region_id)

    def read(
        self,
        region: RegionRef,
        reads: Sequence[Read],
        *,
        generation: Generation | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        """READ in the calling thread; on return every byte is in place and the generation was unchanged.

        Raises TransferError (StaleEpoch, StaleGeneration, out of range) or Unavailable (peer gone, timeout).
        """
        self.run(ReadBatch(region, reads, generation, timeout_s))

    def run(self, batch: ReadBatch) -> None:
        """`read` for a prepared batch: with a cancel flag, or a callback per read."""
        batch.check()
        address = batch.region.address
        reason = "no transport of this process reaches it"
        for transport in self._transports:
            if not transport.reaches(address):
                continue
            try:
                transport.read(batch)
            except Unreachable as error:
                reason = error.message
            else:
                return
        raise Unavailable(f"{describe(address)} cannot be read: {reason}")

    def submit(self, batches: Sequence[ReadBatch]) -> Handle:
        """Run batches one after the other on a thread of the engine."""
        with self._lock:
            if self._submit_workers is None:
                self._submit_workers = ThreadPoolExecutor(
                    _NUM_SUBMIT_WORKERS, thread_name_prefix="mc-transfer"
                )
        cancelled = threading.Event()
        mine = [dataclasses.replace(batch, cancelled=cancelled) for batch in batches]
        return Handle(self._submit_workers.submit(self._run_all, mine), cancelled)

    def wait(self, handle: Handle, timeout_s: float | None = None) -> None:
        handle.wait(timeout_s)

    def close(self) -> None:
        if self._submit_workers is not None:
            self._submit_workers.shutdown(cancel_futures=True)
        self._server.close()
        for transport in self._transports:
            transport.close()
        self._regions.close()
        if self._unix_path is not None:
            self._unix_path.unlink(missing_ok=True)

    def _run_all(self, batches: Sequence[ReadBatch]) -> None:
        for batch in batches:
            self.run(batch)


def _listen(tcp: tuple[str, int] | None, unix_path: Path | None) -> tuple[list[socket.socket], str]:
    """The data port's sockets, and the "host:port" that peers are told."""
    listeners: list[socket.socket] = []
    endpoint = ""
    try:
        if tcp is not None:
            host = tcp[0]
            listeners.append(_listen_tcp(host, tcp[1]))
            port = listeners[0].getsockname()[1]
            endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if unix_path is not None:
            listeners.append(_listen_unix(unix_path))
    except ConfigError:
        for listener in listeners:
            listener.close()
        raise
    return listeners, endpoint


def _listen_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port} for data: {error.strerror}") from error


def _listen_unix(path: Path) -> socket.socket:
    if len(str(path)) > _MAX_UNIX_PATH:
        raise ConfigError(f"{path} is too long for a UNIX socket; choose a shorter directory")
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_dead_sockets(path.parent)
        listener.bind(str(path))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror}") from error
    return listener


def _remove_dead_sockets(directory: Path) -> None:
    """Sockets of processes that were killed; a live one accepts, and is left alone."""
    for path in directory.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0.2)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue
