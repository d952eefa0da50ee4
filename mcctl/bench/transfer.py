"""`mcctl bench transfer`: READ and WRITE against a peer process, each figure beside the limit of the same moment.

The limit is a memcpy loop over the same sizes for shm, and plain Python sockets with the same number of streams and
the same buffers for tcp. Both are measured in turns, so that what else the machine does falls on both. For rdma it is
what perftest says, where that is installed.
"""

import contextlib
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
from mcctl.bench import perftest, transfer_limits
from mcctl.bench.published_engine import VARIANTS, PublishedEngine, published_engine
from mcctl.bench.transfer_peer import PeerAnnouncement

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
_ROUNDS: Final = 15
_ROUND_S: Final = 0.05
"""Short, so that both sides of a ratio see the same machine."""
_MIN_REPEATS: Final = 2
_PERFTEST_S: Final = 0.5


class TransferRow(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over rounds, the ratio too; a GB is 10^9 bytes, `p50_us` is one whole batch of one thread."""

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


class BesideRow(msgspec.Struct, frozen=True, kw_only=True):
    """The published engine over TCP in the same rounds; `ratio` is ours divided by it, the median over rounds."""

    variant: str
    """default, or tuned: with its pool of connections and slices of 4 MiB."""
    operation: Operation
    size_bytes: int
    batch: int
    gb_s: float
    p50_us: float
    ratio: float


class TransferResult(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and what the limits are."""

    rows: list[TransferRow]
    limits: dict[str, str]
    beside: list[BesideRow] = []
    """Empty unless it was asked for."""


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What to measure."""

    sizes: Sequence[int]
    batch: int
    threads: int
    transports: Sequence[TransportName]
    beside: Path | None = None
    """A Python that has the published engine."""


def run(plan: TransferPlan, progress: Progress) -> TransferResult:
    rows: list[TransferRow] = []
    beside: list[BesideRow] = []
    largest = max(size * _batch_of(plan, size) for size in plan.sizes)
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(_peer(largest, plan.transports))
        others: list[PublishedEngine] = []
        if plan.beside is not None:
            progress("starting the published engine")
            opened = [published_engine(plan.beside, name, largest) for name in VARIANTS]
            others = [stack.enter_context(one) for one in opened]
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
                        row, more = case.measure(engine, operation, others)
                        rows.append(row)
                        beside += more
            finally:
                engine.close()
                memory.close()
    return TransferResult(
        rows=rows,
        beside=beside,
        limits={
            "shm": "memcpy of the same blocks in one process, the same threads",
            "shm view": "a READ of the same blocks and one pass over them",
            "tcp": "plain Python sockets, the same number of streams and socket buffers",
            "rdma": "ib_read_bw and ib_write_bw of perftest over one device, messages of the same size, "
            "as many under way as a batch has",
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
            [sys.executable, "-m", "mcctl.bench.transfer_peer", directory, *arguments],
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

    def measure(
        self, engine: TransferEngine, operation: Operation, others: Sequence[PublishedEngine]
    ) -> tuple[TransferRow, list[BesideRow]]:
        others = others if self._transport == "tcp" else ()
        with contextlib.ExitStack() as stack:
            move = {"read": self._read, "write": self._write, "view": self._view}[operation]
            engine_moves = [move(engine, local) for local in self._locals]
            limit = self._limit(stack, engine, operation)
            for warm in (*engine_moves, *limit):
                warm()
            for other in others:
                other.times(operation, self._size, self._batch, 0.0)
            took, limit_took, cpu_s, moved = [], [], 0.0, 0
            others_took: list[list[float]] = [[] for _ in others]
            for _ in range(_ROUNDS):
                before_s = time.process_time() + self._peer.cpu_s()
                times = _timed(engine_moves)
                cpu_s += time.process_time() + self._peer.cpu_s() - before_s
                moved += len(times) * self._total
                took.append(median(times))
                if limit:
                    limit_took.append(median(_timed(limit)))
                for other, its in zip(others, others_took, strict=True):
                    its.append(median(other.times(operation, self._size, self._batch, _ROUND_S)))
        rate = self._total * self._threads / median(took)
        limit_rate = self._total * self._threads / median(limit_took) if limit else None
        ratio = _ratio(limit_took, took) if limit else None
        if self._transport == "rdma" and operation != "view":
            num_messages = max(5, min(int(rate * _PERFTEST_S / self._size), 20_000))
            limit_rate = perftest.bandwidth(
                operation, self._size, num_messages, depth=self._batch * self._threads
            )
            ratio = rate / limit_rate if limit_rate else None
        row = TransferRow(
            transport=self._transport,
            operation=operation,
            size_bytes=self._size,
            batch=self._batch,
            threads=self._threads,
            gb_s=rate / 1e9,
            limit_gb_s=limit_rate / 1e9 if limit_rate else None,
            ratio=ratio,
            p50_us=median(took) * 1e6,
            limit_p50_us=median(limit_took) * 1e6 if limit else None,
            cpu_s_per_gb=cpu_s / (moved / 1e9),
        )
        beside = [
            BesideRow(
                variant=other.variant,
                operation=operation,
                size_bytes=self._size,
                batch=self._batch,
                gb_s=self._total / median(its) / 1e9,
                p50_us=median(its) * 1e6,
                ratio=_ratio(its, took),
            )
            for other, its in zip(others, others_took, strict=True)
        ]
        return row, beside

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
                return transfer_limits.memcpy(self._locals, self._size)
            case "tcp":
                port = self._peer.announced.plain_port
                return transfer_limits.plain_sockets(
                    stack, port, self._locals, operation == "write"
                )
            case "rdma":
                return []


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Of the two in the same round, the median: what else the machine did fell on both."""
    return median([their_s / our_s for their_s, our_s in zip(theirs, ours, strict=True)])


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
