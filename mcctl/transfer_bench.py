"""`mcctl bench transfer`: READ and WRITE against a peer process, each figure beside the limit of the same moment.

The limit is a memcpy loop over the same sizes for shm, and plain Python sockets with the same number of streams and
the same buffers for tcp. Both are measured in turns, so that what else the machine does falls on both. For rdma it is
what perftest says, where that is installed.
"""

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal

import msgspec
import numpy as np

from daemons.core.errors import Unavailable
from daemons.core.units import MIB, format_size
from daemons.protocol.segment import Strided
from daemons.transfer import ByteArray, Read, TransferEngine, Write, allocate_shared, contiguous
from daemons.transfer.transports.tcp import streams_for
from mcctl import perftest
from mcctl.transfer_peer import REQUEST, TAKEN, PeerAnnouncement, receive, set_buffers

Progress = Callable[[str], object]
TransportName = Literal["shm", "tcp", "rdma"]
Operation = Literal["read", "write", "view"]
"""view: one pass over the bytes where they are; its limit is a READ and one pass over what it brought."""

_OPERATIONS: Final[dict[TransportName, tuple[Operation, ...]]] = {
    "shm": ("read", "write", "view"),
    "tcp": ("read", "write"),
    "rdma": ("read", "write"),
}

SIZES: Final = ("4KiB", "64KiB", "1MiB", "16MiB", "256MiB")
MAX_SIZE_BYTES: Final = 1024 * MIB
_MAX_BATCH_BYTES: Final = 256 * MIB
_ROUNDS: Final = 5
_ROUND_S: Final = 0.15
_MIN_REPEATS: Final = 3
_PERFTEST_S: Final = 0.5


class TransferRow(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over rounds; a GB is 10^9 bytes, `p50_us` is one whole batch of one thread."""

    transport: TransportName
    operation: Operation
    size_bytes: int
    batch: int
    threads: int
    gb_s: float
    limit_gb_s: float | None
    """None where the limit could not be measured."""
    ratio: float | None
    p50_us: float
    limit_p50_us: float | None
    cpu_s_per_gb: float
    """Of both processes together."""


class TransferResult(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and what the limits are."""

    rows: list[TransferRow]
    limits: dict[str, str]


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What to measure."""

    sizes: Sequence[int]
    batch: int
    threads: int
    transports: Sequence[TransportName]


def run(plan: TransferPlan, progress: Progress) -> TransferResult:
    rows: list[TransferRow] = []
    largest = max(size * _batch_of(plan, size) for size in plan.sizes)
    with _peer(largest, plan.transports) as peer:
        for transport in plan.transports:
            engine = TransferEngine(unix_dir=peer.directory, transports=(transport,))
            memory = allocate_shared("bench-local", largest * plan.threads)
            memory.array[:] = 0
            engine.register(memory)
            try:
                for size in plan.sizes:
                    for operation in _OPERATIONS[transport]:
                        progress(f"{transport} {operation} {format_size(size)}")
                        case = _Case(plan, peer, transport, size, memory.array)
                        rows.append(case.measure(engine, operation))
            finally:
                engine.close()
                memory.close()
    return TransferResult(
        rows=rows,
        limits={
            "shm": "memcpy of the same blocks in one process, the same threads",
            "shm view": "a READ of the same blocks and one pass over them",
            "tcp": "plain Python sockets, the same number of streams and socket buffers",
            "rdma": "ib_read_bw and ib_write_bw of perftest over one device, messages of the same size",
        },
    )


def _batch_of(plan: TransferPlan, size: int) -> int:
    return max(1, min(plan.batch, _MAX_BATCH_BYTES // (size * plan.threads)))


@dataclass(frozen=True, slots=True)
class _Peer:
    process: subprocess.Popen[str]
    directory: Path
    announced: PeerAnnouncement

    def cpu_s(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("cpu\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


@contextlib.contextmanager
def _peer(region_bytes: int, transports: Sequence[TransportName]) -> Iterator[_Peer]:
    arguments = [str(region_bytes), *transports]
    with tempfile.TemporaryDirectory(prefix="mcb-") as directory:
        process = subprocess.Popen(
            [sys.executable, "-m", "mcctl.transfer_peer", directory, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            told = process.stdout.readline()
            if not told:
                raise Unavailable("the peer process of the bench did not start")
            yield _Peer(process, Path(directory), msgspec.json.decode(told, type=PeerAnnouncement))
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


class _Case:
    """One size of one transport."""

    def __init__(
        self,
        plan: TransferPlan,
        peer: _Peer,
        transport: TransportName,
        size: int,
        local: ByteArray,
    ) -> None:
        self._peer = peer
        self._transport = transport
        self._size = size
        self._batch = _batch_of(plan, size)
        self._threads = plan.threads
        total = size * self._batch
        self._total = total
        self._locals = [local[i * total : (i + 1) * total] for i in range(plan.threads)]

    def measure(self, engine: TransferEngine, operation: Operation) -> TransferRow:
        with contextlib.ExitStack() as stack:
            move = {"read": self._read, "write": self._write, "view": self._view}[operation]
            engine_moves = [move(engine, local) for local in self._locals]
            limit = self._limit(stack, engine, operation)
            for warm in (*engine_moves, *limit):
                warm()
            took, limit_took, cpu_s, moved = [], [], 0.0, 0
            for _ in range(_ROUNDS):
                before_s = time.process_time() + self._peer.cpu_s()
                times = _timed(engine_moves)
                cpu_s += time.process_time() + self._peer.cpu_s() - before_s
                moved += len(times) * self._total
                took.append(median(times))
                if limit:
                    limit_took.append(median(_timed(limit)))
        rate = self._total * self._threads / median(took)
        limit_rate = self._total * self._threads / median(limit_took) if limit else None
        if self._transport == "rdma" and operation != "view":
            num_messages = max(5, min(int(rate * _PERFTEST_S / self._size), 20_000))
            limit_rate = perftest.bandwidth(operation, self._size, num_messages)
        return TransferRow(
            transport=self._transport,
            operation=operation,
            size_bytes=self._size,
            batch=self._batch,
            threads=self._threads,
            gb_s=rate / 1e9,
            limit_gb_s=limit_rate / 1e9 if limit_rate else None,
            ratio=rate / limit_rate if limit_rate else None,
            p50_us=median(took) * 1e6,
            limit_p50_us=median(limit_took) * 1e6 if limit else None,
            cpu_s_per_gb=cpu_s / (moved / 1e9),
        )

    def _ranges(self) -> list[Strided]:
        return [contiguous(index * self._size, self._size) for index in range(self._batch)]

    def _read(self, engine: TransferEngine, local: ByteArray) -> Callable[[], None]:
        region = self._peer.announced.region
        reads = [Read.into(each, local, each.offset) for each in self._ranges()]
        return lambda: engine.read(region, reads, timeout_s=60)

    def _write(self, engine: TransferEngine, local: ByteArray) -> Callable[[], None]:
        region = self._peer.announced.region
        writes = [Write.at(each.offset, local[each.offset : each.end]) for each in self._ranges()]
        return lambda: engine.write(region, writes, timeout_s=60)

    def _view(self, engine: TransferEngine, _: ByteArray) -> Callable[[], None]:
        region, ranges = self._peer.announced.region, self._ranges()

        def look() -> None:
            with engine.view(region, ranges, timeout_s=60) as view:
                for rows in view.arrays:
                    _pass_over(rows[0])

        return look

    def _read_and_pass(self, engine: TransferEngine, local: ByteArray) -> Callable[[], None]:
        read, ranges = self._read(engine, local), self._ranges()

        def look() -> None:
            read()
            for each in ranges:
                _pass_over(local[each.offset : each.end])

        return look

    def _limit(
        self, stack: contextlib.ExitStack, engine: TransferEngine, operation: Operation
    ) -> list[Callable[[], None]]:
        """What is measured in turns with the engine, for each thread."""
        if operation == "view":
            return [self._read_and_pass(engine, local) for local in self._locals]
        match self._transport:
            case "shm":
                return self._memcpy()
            case "tcp":
                return self._sockets(stack, operation)
            case "rdma":
                return []

    def _memcpy(self) -> list[Callable[[], None]]:
        source = np.ones(self._total, np.uint8)

        def copy(target: ByteArray) -> None:
            for start in range(0, self._total, self._size):
                np.copyto(target[start : start + self._size], source[start : start + self._size])

        return [lambda target=local: copy(target) for local in self._locals]  # type: ignore[misc]  # bound now

    def _sockets(
        self, stack: contextlib.ExitStack, operation: Operation
    ) -> list[Callable[[], None]]:
        """For each thread what a batch uses: so many streams, each asked for its share or sent it."""
        num_streams = streams_for(self._total)
        share = self._total // num_streams

        def read(sock: socket.socket, target: memoryview) -> None:
            sock.sendall(REQUEST.pack(len(target), 0))
            receive(sock, target)

        def write(sock: socket.socket, source: memoryview) -> None:
            sock.sendall(REQUEST.pack(len(source), 1))
            sock.sendall(source)
            receive(sock, memoryview(bytearray(len(TAKEN))))

        ask = {"read": read, "write": write}[operation]

        def run_all(socks: Sequence[socket.socket], target: memoryview) -> None:
            others = [
                threading.Thread(target=ask, args=(sock, target[i * share : (i + 1) * share]))
                for i, sock in enumerate(socks[1:], 1)
            ]
            for other in others:
                other.start()
            ask(socks[0], target[:share])
            for other in others:
                other.join()

        moves: list[Callable[[], None]] = []
        for local in self._locals:
            socks = [stack.enter_context(self._connect()) for _ in range(num_streams)]
            moves.append(lambda socks=socks, local=local: run_all(socks, local.data))  # type: ignore[misc]  # bound now
        return moves

    def _connect(self) -> socket.socket:
        sock = socket.socket()
        set_buffers(sock)
        sock.connect(("127.0.0.1", self._peer.announced.plain_port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


def _pass_over(block: ByteArray) -> None:
    """Reads every byte once."""
    np.bitwise_xor.reduce(block.view(np.uint64) if block.nbytes % 8 == 0 else block)


def _timed(moves: Sequence[Callable[[], None]]) -> list[float]:
    """Seconds of each call, all threads together, for one round."""
    took: list[float] = []
    deadline_s = time.perf_counter() + _ROUND_S

    def loop(move: Callable[[], None]) -> None:
        count = 0
        while count < _MIN_REPEATS or time.perf_counter() < deadline_s:
            started_s = time.perf_counter()
            move()
            took.append(time.perf_counter() - started_s)
            count += 1

    if len(moves) == 1:
        loop(moves[0])
        return took
    threads = [threading.Thread(target=loop, args=(move,)) for move in moves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took
