"""WRITE between real processes: what is acknowledged is readable, and what was given up never lands."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from daemons.core.errors import Exhausted, McError, TransferError, Unavailable
from daemons.core.ids import new_epoch
from daemons.protocol.segment import RegionRef, Strided
from daemons.transfer import (
    Cancelled,
    NotOver,
    Read,
    ReadBatch,
    SharedMemory,
    TransferEngine,
    Write,
    WriteBatch,
    allocate_shared,
    contiguous,
)

SIZE = 32 << 20
TARGET = """
import sys
from pathlib import Path
import msgspec, numpy as np
from daemons.core.ids import new_epoch
from daemons.transfer import TransferEngine, allocate_shared
engine = TransferEngine(epoch=new_epoch(), unix_dir=Path(sys.argv[1]), max_notifications=4)
memory = allocate_shared("target", int(sys.argv[2]))
region, closed = engine.register(memory, "read-write"), engine.register(bytearray(4096))
print(msgspec.json.encode((region, closed)).decode(), flush=True)
for line in sys.stdin:
    match line.split():
        case ["sum"]:
            print(int(memory.array.sum(dtype=np.uint64)), flush=True)
        case ["fill", value]:
            memory.array[:] = int(value)
            print("ok", flush=True)
        case ["deregister"]:
            engine.deregister(region)
            memory.array[:] = 7
            print("ok", flush=True)
        case ["notes"]:
            notes = engine.notifications(20.0)
            print(msgspec.json.encode([(n.message.decode(), int(memory.array[0])) for n in notes]).decode(), flush=True)
"""


@dataclass
class Target:
    """A process with a region that may be written and one that may not."""

    process: subprocess.Popen[str]
    region: RegionRef
    closed: RegionRef

    def ask(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def stop(self) -> None:
        """Returns when all of its threads have stopped."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        while any(t.read_text().rpartition(")")[2].split()[0] != "T" for t in tasks.glob("*/stat")):
            time.sleep(0.001)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(f"/tmp/mcw-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    path.mkdir()
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


@pytest.fixture
def target(directory: Path) -> Iterator[Target]:
    process = subprocess.Popen(
        [sys.executable, "-c", TARGET, str(directory), str(SIZE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    told = msgspec.json.decode(process.stdout.readline(), type=tuple[RegionRef, RegionRef])
    yield Target(process, *told)
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


@pytest.fixture
def make_engine(directory: Path) -> Iterator[Callable[..., TransferEngine]]:
    engines: list[TransferEngine] = []

    def make(*transports: str) -> TransferEngine:
        engines.append(TransferEngine(epoch=new_epoch(), unix_dir=directory, transports=transports))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


MEMORY = ["private", "shared", "lent"]
PATHS = [("shm", kind) for kind in MEMORY] + [("tcp", "private")]


def source_of(engine: TransferEngine, kind: str) -> tuple[np.ndarray, SharedMemory | None]:
    """Random bytes: unknown to the engine, a registered memfd, or registered private memory."""
    random = np.random.default_rng(3).integers(0, 256, SIZE, np.uint8)
    if kind == "shared":
        memory = allocate_shared("source", SIZE)
        memory.array[:] = random
        engine.register(memory)
        return memory.array, memory
    if kind == "lent":
        engine.register(random)
    return random, None


@pytest.mark.parametrize(("transport", "kind"), PATHS)
def test_random_writes_are_readable_when_they_return(
    target: Target, make_engine: Callable[..., TransferEngine], transport: str, kind: str
) -> None:
    engine, truth = make_engine(transport), np.zeros(SIZE, np.uint8)
    source, memory = source_of(engine, kind)
    random = np.random.default_rng(4)
    for turn in range(25):
        writes, lane = [], SIZE // 6  # each in its own: those of a batch land in any order
        for index in range(int(random.integers(1, 6))):
            scale = (50, 3000, 200_000)[turn % 3]
            rows, row = int(random.integers(1, 30)), int(random.integers(1, scale))
            gap = int(random.integers(0, 500))
            row = min(row, (lane - 1) // rows - gap)
            length, span = rows * row, rows * (row + gap)
            start = int(random.integers(0, SIZE - length))
            at = index * lane + int(random.integers(0, lane - span))
            remote = Strided(offset=at, row_bytes=row, num_rows=rows, stride_bytes=row + gap)
            writes.append(Write(source, contiguous(start, length), remote))
            rows_of = np.ndarray((rows, row), np.uint8, truth, at, (row + gap, 1))
            rows_of[:] = source[start : start + length].reshape(rows, row)
        engine.write(target.region, writes)
        assert int(target.ask("sum")) == int(truth.sum(dtype=np.uint64))
    result = np.zeros(SIZE, np.uint8)
    engine.read(target.region, [Read.into(contiguous(0, SIZE), result)])
    assert np.array_equal(result, truth)
    if memory is not None:
        del source
        memory.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("length", [100, 1 << 20, SIZE])
def test_only_regions_registered_for_it_can_be_written(
    target: Target, make_engine: Callable[..., TransferEngine], transport: str, length: int
) -> None:
    engine, data = make_engine(transport), np.ones(length, np.uint8)
    lying = msgspec.structs.replace(target.closed, size_bytes=SIZE)
    with pytest.raises(TransferError, match=r"for READ only|does not fit"):
        engine.write(lying, [Write.at(0, data)])
    unknown = msgspec.structs.replace(target.region, region_id=99)
    with pytest.raises(TransferError, match="not registered"):
        engine.write(unknown, [Write.at(0, data)])
    with pytest.raises(TransferError, match="does not fit"):
        engine.write(target.region, [Write.at(SIZE - length + 1, data)])
    assert target.ask("sum") == "0"
    engine.write(target.region, [Write.at(0, data)])
    assert int(target.ask("sum")) == length


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_message_arrives_behind_its_data_and_a_full_queue_is_an_error(
    target: Target, make_engine: Callable[..., TransferEngine], transport: str
) -> None:
    engine = make_engine(transport)
    for value in (1, 2, 3):
        engine.write(
            target.region, [Write.at(0, np.full(8 << 20, value, np.uint8))], notify=b"%d" % value
        )
    local = np.zeros(10, np.uint8)
    reads = [Read.into(contiguous(0, 10), local)]
    engine.run(ReadBatch(target.region, reads, notify=b"read"))
    with pytest.raises(Exhausted, match="queue of notifications is full"):
        engine.run(ReadBatch(target.region, reads, notify=b"once more"))
    assert msgspec.json.decode(target.ask("notes")) == [["1", 3], ["2", 3], ["3", 3], ["read", 3]]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("length", [1000, SIZE])
@pytest.mark.parametrize("gives_up_by", ["timeout", "cancel"])
def test_what_was_given_up_before_a_stopped_target_never_lands(
    target: Target,
    make_engine: Callable[..., TransferEngine],
    transport: str,
    length: int,
    gives_up_by: str,
) -> None:
    engine, data = make_engine(transport), np.full(length, 9, np.uint8)
    if length == 1000:  # over a connection that is open already
        engine.write(target.region, [Write.at(0, np.zeros(10, np.uint8))])
    target.stop()
    handle = engine.submit(
        [WriteBatch(target.region, [Write.at(0, data)], 0.3 if gives_up_by == "timeout" else 60)]
    )
    time.sleep(0.1)
    if gives_up_by == "cancel":
        handle.cancel()
    with pytest.raises((NotOver, Unavailable, Cancelled)) as failure:
        handle.wait(60)
    if isinstance(failure.value, NotOver):
        assert not handle.is_over
        assert handle.slices()[0].state == "running"
    target.resume()
    assert handle.fence(60)
    assert handle.slices()[0].state == ("failed" if gives_up_by == "timeout" else "cancelled")
    assert target.ask("fill 1") == "ok"
    time.sleep(0.3)
    assert int(target.ask("sum")) == SIZE


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_cancel_in_the_middle_is_over_when_it_says_so(
    target: Target, make_engine: Callable[..., TransferEngine], transport: str
) -> None:
    engine, data = make_engine(transport), np.full(SIZE, 9, np.uint8)
    for turn in range(12):
        handle = engine.submit([WriteBatch(target.region, [Write.at(0, data)]) for _ in range(4)])
        time.sleep(turn * 0.002)
        handle.cancel()
        try:
            handle.wait(60)
        except (Cancelled, NotOver):
            assert handle.fence(60)
        assert target.ask("fill 1") == "ok"
        time.sleep(0.01)
        assert int(target.ask("sum")) == SIZE


WRITER = """
import os, signal, sys
from pathlib import Path
import msgspec, numpy as np
from daemons.core.errors import McError
from daemons.core.ids import new_epoch
from daemons.protocol.segment import RegionRef
from daemons.transfer import TransferEngine, Write, WriteBatch
region = msgspec.json.decode(sys.argv[2], type=RegionRef)
engine = TransferEngine(epoch=new_epoch(), unix_dir=Path(sys.argv[1]), transports=(sys.argv[3],))
data = np.full(region.size_bytes, 9, np.uint8)
print("ready", flush=True)
try:
    while True:
        engine.write(region, [Write.at(0, data)])
except McError as error:
    print(type(error).__name__, flush=True)
engine.close()
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_stopped_writer_cannot_write_into_what_was_deregistered(
    directory: Path, transport: str
) -> None:
    engine = TransferEngine(epoch=new_epoch(), unix_dir=directory)
    memory = allocate_shared("target", SIZE)
    for turn in range(6):
        region = engine.register(memory, "read-write")
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory), msgspec.json.encode(region).decode(), transport],
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.02 + turn * 0.003)
        writer.send_signal(signal.SIGSTOP)
        engine.deregister(region)
        memory.array[:] = 1
        writer.send_signal(signal.SIGCONT)
        output, _ = writer.communicate(timeout=120)
        assert output.strip() in ("TransferError", "Unavailable"), output
        assert int(memory.array.sum(dtype=np.uint64)) == SIZE
    engine.close()
    memory.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_target_is_reported_at_once_and_remembered(
    target: Target, make_engine: Callable[..., TransferEngine], transport: str
) -> None:
    engine, data = make_engine(transport), np.ones(1000, np.uint8)
    engine.write(target.region, [Write.at(0, data)])
    target.process.kill()
    target.process.wait()
    # On a busy machine a few tries may wait for a CPU; all of them for a minute would be the engine's doing.
    took_s: list[float] = []
    give_up = time.monotonic() + 60
    while len(took_s) < 5 or (min(took_s) >= 0.05 and time.monotonic() < give_up):
        started_s = time.monotonic()
        with pytest.raises(Unavailable):
            engine.write(target.region, [Write.at(0, data)])
        with pytest.raises(Unavailable):
            engine.read(target.region, [Read.into(contiguous(0, 1000), data)])
        took_s.append(time.monotonic() - started_s)
    assert min(took_s) < 0.05


def test_twenty_thousand_small_transfers_use_one_connection(
    target: Target, make_engine: Callable[..., TransferEngine]
) -> None:
    engine, data = make_engine("tcp"), np.ones(64, np.uint8)
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    failures: list[McError] = []

    def run() -> None:
        try:
            for _ in range(2500):
                engine.write(target.region, [Write.at(0, data)], timeout_s=60)
                reads = [Read.into(contiguous(0, 64), data.copy())]
                engine.read(target.region, reads, timeout_s=60)
        except McError as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(list(Path("/proc/self/fd").iterdir())) - num_open <= 8


def test_own_regions_can_be_written_without_a_socket(
    make_engine: Callable[..., TransferEngine],
) -> None:
    engine, memory = make_engine(), bytearray(10)
    region = engine.register(memory, "read-write")
    engine.write(region, [Write.at(2, np.full(3, 5, np.uint8))], notify=b"there")
    assert memory == bytes([0, 0, 5, 5, 5, 0, 0, 0, 0, 0])
    assert [n.message for n in engine.notifications()] == [b"there"]
    with pytest.raises(TransferError, match="READ only"):
        engine.write(engine.register(bytearray(4)), [Write.at(0, np.zeros(4, np.uint8))])
    with pytest.raises(TransferError, match="cannot be registered for WRITE"):
        engine.register(b"read-only", "read-write")


def test_it_listens_only_where_it_was_told(make_engine: Callable[..., TransferEngine]) -> None:
    engine = make_engine("tcp")
    port = int(engine.address.tcp.rpartition(":")[2])
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", port))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_plain_small_write_to_a_stopped_target_is_fenced_too(
    target: Target, make_engine: Callable[..., TransferEngine], transport: str
) -> None:
    engine, data = make_engine(transport), np.full(1000, 9, np.uint8)
    for _ in range(2):  # the second one by the short way
        engine.write(target.region, [Write.at(0, np.zeros(10, np.uint8))])
    target.stop()
    with pytest.raises(NotOver) as failure:
        engine.write(target.region, [Write.at(0, data)], timeout_s=0.2)
    target.resume()
    assert failure.value.path.wait_closed(60)
    assert target.ask("fill 1") == "ok"
    time.sleep(0.2)
    assert int(target.ask("sum")) == SIZE


def test_a_small_read_waits_for_a_busy_owner_until_its_deadline(
    target: Target, make_engine: Callable[..., TransferEngine]
) -> None:
    engine, local = make_engine("tcp"), np.zeros(100, np.uint8)
    reads = [Read.into(contiguous(0, 100), local)]
    assert target.ask("fill 3") == "ok"
    engine.read(target.region, reads)
    target.stop()
    threading.Timer(0.3, target.resume).start()
    engine.read(target.region, reads, timeout_s=60)
    assert local.tolist() == [3] * 100
    target.stop()
    with pytest.raises(Unavailable):
        engine.read(target.region, reads, timeout_s=0.3)
    target.resume()
    engine.read(target.region, reads, timeout_s=60)
