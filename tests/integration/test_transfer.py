"""The data plane between real processes: every transport, hostile bytes, dead and stopped peers, reused sources."""

import contextlib
import itertools
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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemons.core.errors import ConfigError, McError, TransferError, Unavailable
from daemons.core.ids import Epoch, new_epoch
from daemons.protocol.segment import DataAddress, Generation, RegionRef, Strided
from daemons.transfer import (
    ByteArray,
    GenerationTable,
    Read,
    ReadBatch,
    StaleEpoch,
    StaleGeneration,
    TransferEngine,
    Write,
    allocate_shared,
    contiguous,
)
from daemons.transfer.strided import copy
from daemons.transfer.transports import sockets, tcp, wire

SIZE = 8 << 20
OWNER = """
import sys
from pathlib import Path
import msgspec, numpy as np
from daemons.core.ids import Epoch
from daemons.transfer import GenerationTable, TransferEngine, allocate_shared
directory, size, port, epoch = Path(sys.argv[1]), *map(int, sys.argv[2:5])
engine = TransferEngine(epoch=Epoch(epoch), unix_dir=directory, tcp_port=port)
shared = allocate_shared("owner", size)
shared.array[:] = np.random.default_rng(1).integers(0, 256, size, np.uint8)
private = shared.array.copy()
table = GenerationTable(engine, 2)
told = (engine.register(shared), engine.register(private), table.guard(1))
print(msgspec.json.encode(told).decode(), flush=True)
for line in sys.stdin:
    if line == "reuse\\n":
        table.advance(1)
        shared.array[:] = 0
        private[:] = 0
    print(table.current(1), flush=True)
"""


@dataclass
class Owner:
    """Another process that lends one shared and one private region with the same bytes."""

    process: subprocess.Popen[str]
    shared: RegionRef
    private: RegionRef
    guard: Generation

    def reuse(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("reuse\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(f"/tmp/mct-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    path.mkdir()
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


@pytest.fixture
def start_owner(directory: Path) -> Iterator[Callable[..., Owner]]:
    owners: list[Owner] = []

    def start(size: int = SIZE, port: int = 0, epoch: int | None = None) -> Owner:
        arguments = [str(directory), str(size), str(port), str(epoch or new_epoch())]
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        told = msgspec.json.decode(
            process.stdout.readline(), type=tuple[RegionRef, RegionRef, Generation]
        )
        owners.append(Owner(process, *told))
        return owners[-1]

    yield start
    for owner in owners:
        owner.kill()
        for pipe in (owner.process.stdin, owner.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def make_engine(directory: Path) -> Iterator[Callable[..., TransferEngine]]:
    engines: list[TransferEngine] = []

    def make(*transports: str) -> TransferEngine:
        engines.append(TransferEngine(epoch=new_epoch(), unix_dir=directory, transports=transports))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def expected() -> ByteArray:
    return np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)


PATHS = [("shm", "shared"), ("shm", "private"), ("tcp", "shared")]


@pytest.mark.parametrize(("transport", "kind"), PATHS)
def test_random_reads_equal_the_owners_bytes(
    start_owner: Callable[..., Owner],
    make_engine: Callable[..., TransferEngine],
    transport: str,
    kind: str,
) -> None:
    owner, engine, truth = start_owner(), make_engine(transport), expected()
    region: RegionRef = getattr(owner, kind)
    random = np.random.default_rng(5)
    for _ in range(60):
        reads, wanted = [], []
        target = np.zeros(1 << 20, np.uint8)
        end = 0
        for _ in range(random.integers(1, 8)):
            rows, row = int(random.integers(1, 40)), int(random.integers(1, 3000))
            stride = row + int(random.integers(0, 2000))
            offset = int(random.integers(0, SIZE - stride * rows))
            remote = Strided(offset=offset, row_bytes=row, num_rows=rows, stride_bytes=stride)
            reads.append(Read.into(remote, target, end))
            piece = np.zeros(remote.length, np.uint8)
            copy(truth, remote, piece, contiguous(0, remote.length))
            wanted.append((end, piece))
            end += remote.length
        engine.read(region, reads, generation=owner.guard)
        for start, piece in wanted:
            assert np.array_equal(target[start : start + piece.nbytes], piece)
        assert not target[end:].any()


def test_more_ranges_than_one_request_holds(
    start_owner: Callable[..., Owner], make_engine: Callable[..., TransferEngine]
) -> None:
    owner, engine, truth = start_owner(), make_engine("tcp"), expected()
    target = np.zeros(3000, np.uint8)
    done: list[int] = []
    reads = [Read.into(contiguous(7 * i, 2), target, 2 * i) for i in range(1500)]
    engine.run(ReadBatch(owner.shared, reads, owner.guard, on_read=done.append))
    assert np.array_equal(target.reshape(-1, 2), truth[: 7 * 1500].reshape(-1, 7)[:, :2])
    assert done == list(range(1500))


def test_a_large_batch_over_several_streams_has_each_byte_in_its_place(
    make_engine: Callable[..., TransferEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "_NUM_LOCAL_STREAMS", 3)
    owner, engine = make_engine("tcp"), make_engine("tcp")
    size = (13 << 20) + 5
    memory = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    region, target = owner.register(memory, "read-write"), np.zeros(size, np.uint8)
    ends = (0, 7, 6 << 20, (6 << 20) + 3, size)
    ranges = [contiguous(start, end - start) for start, end in itertools.pairwise(ends)]
    engine.read(region, [Read.into(each, target, each.offset) for each in reversed(ranges)])
    assert np.array_equal(target, memory)
    target = target[::-1].copy()
    engine.write(region, [Write(target, each, each) for each in ranges])
    assert np.array_equal(memory, target)


@pytest.mark.parametrize(("transport", "kind"), PATHS)
def test_ranges_outside_the_region_are_refused_by_both_sides(
    start_owner: Callable[..., Owner],
    make_engine: Callable[..., TransferEngine],
    transport: str,
    kind: str,
) -> None:
    owner, engine = start_owner(), make_engine(transport)
    region: RegionRef = getattr(owner, kind)
    target = np.zeros(100, np.uint8)
    outside = [Read.into(contiguous(SIZE - 50, 100), target)]
    with pytest.raises(TransferError, match="does not fit"):
        engine.read(region, outside)
    lying = msgspec.structs.replace(region, size_bytes=2 * SIZE)
    with pytest.raises(TransferError):
        engine.read(lying, outside)
    unknown = msgspec.structs.replace(region, region_id=999)
    with pytest.raises(TransferError, match="not registered"):
        engine.read(unknown, [Read.into(contiguous(0, 100), target)])
    assert not target.any()
    engine.read(region, [Read.into(contiguous(0, 100), target)])
    assert np.array_equal(target, expected()[:100])


@pytest.mark.parametrize(("transport", "kind"), PATHS)
def test_a_reused_source_is_refused(
    start_owner: Callable[..., Owner],
    make_engine: Callable[..., TransferEngine],
    transport: str,
    kind: str,
) -> None:
    owner, engine = start_owner(), make_engine(transport)
    region: RegionRef = getattr(owner, kind)
    reads = [Read.into(contiguous(0, 100), np.zeros(100, np.uint8))]
    engine.read(region, reads, generation=owner.guard)
    owner.reuse()
    with pytest.raises(StaleGeneration):
        engine.read(region, reads, generation=owner.guard)
    bad_guard = Generation(region_id=owner.guard.region_id, index=1 << 40, value=1)
    with pytest.raises(TransferError):
        engine.read(region, reads, generation=bad_guard)


@pytest.mark.parametrize(("transport", "kind"), PATHS)
def test_a_killed_peer_is_an_error_soon(
    start_owner: Callable[..., Owner],
    make_engine: Callable[..., TransferEngine],
    transport: str,
    kind: str,
) -> None:
    owner, engine = start_owner(), make_engine(transport)
    region: RegionRef = getattr(owner, kind)
    target = np.zeros(SIZE, np.uint8)
    reads = [Read.into(contiguous(0, SIZE), target)] * 20
    has_begun, is_dead = threading.Event(), threading.Event()

    def wait_for_its_death(_: int) -> None:
        has_begun.set()
        is_dead.wait(60)

    batch = ReadBatch(region, reads, timeout_s=300, on_read=wait_for_its_death)
    handle = engine.submit([batch])
    assert has_begun.wait(60)
    owner.kill()
    is_dead.set()
    with pytest.raises(McError):
        handle.wait(60)
    assert handle.is_done, "long before its deadline"
    with pytest.raises(Unavailable):
        engine.read(region, reads[:1])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_restarted_peer_refuses_descriptors_of_its_earlier_life(
    start_owner: Callable[..., Owner],
    make_engine: Callable[..., TransferEngine],
    transport: str,
) -> None:
    owner, engine = start_owner(), make_engine(transport)
    reads = [Read.into(contiguous(0, 100), np.zeros(100, np.uint8))]
    engine.read(owner.shared, reads)
    owner.kill()
    port = int(owner.shared.address.tcp.rpartition(":")[2])
    again = start_owner(port=port)
    stale = owner.shared
    if transport == "shm":  # even one that comes with the new life's socket
        path = again.shared.address.unix_path
        address = msgspec.structs.replace(stale.address, unix_path=path)
        stale = msgspec.structs.replace(stale, address=address)
    with pytest.raises(StaleEpoch, match="earlier life"):
        engine.read(stale, reads)
    engine.read(again.shared, reads)


def test_a_stopped_peer_ends_with_the_deadline(
    start_owner: Callable[..., Owner], make_engine: Callable[..., TransferEngine]
) -> None:
    owner, engine = start_owner(), make_engine("tcp")
    reads = [Read.into(contiguous(0, 100), np.zeros(100, np.uint8))]
    owner.process.send_signal(signal.SIGSTOP)
    with pytest.raises(Unavailable):
        engine.read(owner.shared, reads, timeout_s=0.4)
    handle = engine.submit([ReadBatch(owner.shared, reads, timeout_s=30)])
    handle.cancel()
    with pytest.raises(TransferError, match="cancelled"):
        handle.wait(60)
    owner.process.send_signal(signal.SIGCONT)
    engine.read(owner.shared, reads, timeout_s=60)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_puller_that_was_stopped_rejects_what_was_reused_meanwhile(
    directory: Path, transport: str
) -> None:
    """The puller stops itself in the middle of its READ; the source changes; it must not believe the bytes."""
    engine = TransferEngine(epoch=new_epoch(), unix_dir=directory)
    memory = allocate_shared("source", SIZE)
    memory.array[:] = 1
    table = GenerationTable(engine, 1)
    script = f"""
import os, signal, sys
from pathlib import Path
import msgspec, numpy as np
from daemons.core.ids import new_epoch
from daemons.protocol.segment import Generation, RegionRef
from daemons.transfer import Read, ReadBatch, StaleGeneration, TransferEngine, contiguous
region, guard = msgspec.json.decode(sys.argv[1], type=tuple[RegionRef, Generation])
engine = TransferEngine(epoch=new_epoch(), unix_dir=Path({str(directory)!r}), transports=({transport!r},))
target = np.zeros({SIZE}, np.uint8)
half = {SIZE // 2}
def stop(index):
    if index == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
reads = [Read.into(contiguous(0, half), target), Read.into(contiguous(half, half), target, half)]
try:
    engine.run(ReadBatch(region, reads, guard, timeout_s=100, on_read=stop))
except StaleGeneration:
    print("refused")
else:
    print("accepted", int(target.min()), int(target.max()))
engine.close()
"""
    told = msgspec.json.encode((engine.register(memory), table.guard(0))).decode()
    puller = subprocess.Popen(
        [sys.executable, "-c", script, told], stdout=subprocess.PIPE, text=True
    )
    _, status = os.waitpid(puller.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    table.advance(0)
    memory.array[:] = 2
    puller.send_signal(signal.SIGCONT)
    output, _ = puller.communicate(timeout=120)
    # Over TCP all may have been sent before the reuse: then these are the right bytes, and every one of them.
    assert output == "refused\n" or (transport == "tcp" and output == "accepted 1 1\n")
    engine.close()


def test_peers_drop_their_maps_of_a_deregistered_region(
    make_engine: Callable[..., TransferEngine],
) -> None:
    owner, reader = make_engine("shm"), make_engine("shm")
    memory, other = allocate_shared("a", 4096), allocate_shared("b", 4096)
    region, kept = owner.register(memory), owner.register(other)
    reads = [Read.into(contiguous(0, 10), np.zeros(10, np.uint8))]
    reader.read(region, reads)
    owner.deregister(region)
    with pytest.raises(TransferError, match="not registered"):
        reader.read(region, reads)
    reader.read(kept, reads)


def test_many_readers_at_once(
    start_owner: Callable[..., Owner], make_engine: Callable[..., TransferEngine]
) -> None:
    owner, engine, truth = start_owner(), make_engine("tcp"), expected()
    failures: list[object] = []

    def read() -> None:
        target = np.zeros(200_000, np.uint8)
        try:
            for turn in range(20):
                offset = turn * 150_000
                engine.read(
                    owner.shared, [Read.into(contiguous(offset, 200_000), target)], timeout_s=60
                )
                if not np.array_equal(target, truth[offset : offset + 200_000]):
                    failures.append(turn)
        except McError as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def connect(address: DataAddress, is_unix: bool) -> socket.socket:
    if is_unix:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.unix_path)
    else:
        host, _, port = address.tcp.rpartition(":")
        sock = socket.create_connection((host, int(port)))
    sock.settimeout(60)
    return sock


@pytest.mark.parametrize("is_unix", [False, True])
def test_hostile_bytes_never_harm_the_data_port(
    make_engine: Callable[..., TransferEngine], is_unix: bool
) -> None:
    engine, reader = make_engine("shm", "tcp"), make_engine("shm" if is_unix else "tcp")
    region = engine.register(bytearray(b"0123456789"))
    frame = wire.encode_request(
        wire.Request(
            op=wire.Op.READ,
            epoch=engine.address.epoch,
            region_id=region.region_id,
            generation=None,
            ranges=(contiguous(0, 10),),
        )
    )

    @settings(
        max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(
        st.one_of(
            st.binary(min_size=1, max_size=200),
            st.tuples(
                st.integers(0, len(frame) - 1), st.binary(min_size=1, max_size=len(frame))
            ).map(lambda change: (frame[: change[0]] + change[1] + frame)[: len(frame) + 7]),
        )
    )
    def send(payload: bytes) -> None:
        with connect(engine.address, is_unix) as sock:
            received = b""
            try:
                sock.sendall(payload)
                with contextlib.suppress(OSError):  # the port may have hung up already
                    sock.shutdown(socket.SHUT_WR)
                while part := sock.recv(4096):
                    received += part
            except ConnectionError:
                pass
            assert len(received) < 4096

    send()
    target = np.zeros(10, np.uint8)
    reader.read(region, [Read.into(contiguous(0, 10), target)])
    assert target.tobytes() == b"0123456789"
    assert engine.counters.bad_requests > 0
    deadline_s = time.monotonic() + 60
    while engine._server.num_connections > 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert engine._server.num_connections <= 2


def test_config_errors_say_which_address(
    directory: Path, make_engine: Callable[..., TransferEngine]
) -> None:
    engine = make_engine("tcp")
    port = int(engine.address.tcp.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
        TransferEngine(epoch=Epoch(1), tcp_port=port)
    with pytest.raises(ConfigError, match="too long for a UNIX socket"):
        TransferEngine(epoch=Epoch(1), unix_dir=directory / ("x" * 100))
    with pytest.raises(ConfigError, match="'pigeon' is not one of"):
        TransferEngine(epoch=Epoch(1), transports=("pigeon",))


def test_an_engine_closes_with_its_block(tmp_path: Path) -> None:
    with TransferEngine(unix_dir=tmp_path) as engine:
        region = engine.register(bytearray(4096), "read-write")
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir()), "its socket is left"
    with pytest.raises(Unavailable, match="closed"):
        engine.read(region, [Read.into(contiguous(0, 16), np.zeros(16, np.uint8))])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_closed_engine_opens_no_connection(tmp_path: Path, transport: str) -> None:
    with TransferEngine(unix_dir=tmp_path) as owner:
        region = owner.register(bytearray(4096), "read-write")
        data = np.zeros(16, np.uint8)
        with TransferEngine(unix_dir=tmp_path, transports=(transport,)) as engine:
            engine.read(region, [Read.into(contiguous(0, 16), data)])
        with pytest.raises(Unavailable, match="closed"):
            engine.read(region, [Read.into(contiguous(0, 16), data)])
        with pytest.raises(Unavailable, match="closed"):
            engine.write(region, [Write.at(0, data)])
        with pytest.raises(Unavailable, match="closed"):
            engine.submit([ReadBatch(region, [Read.into(contiguous(0, 16), data)])])


def test_closing_a_second_time_does_nothing(tmp_path: Path) -> None:
    engine = TransferEngine(unix_dir=tmp_path)
    engine.close()
    engine.close()


def test_regions_of_others_are_not_ones_own_to_give_away(tmp_path: Path) -> None:
    """Although both are the first region of their process."""
    with TransferEngine(unix_dir=tmp_path) as engine, TransferEngine(unix_dir=tmp_path) as other:
        mine, theirs = engine.register(bytearray(64)), other.register(bytearray(64))
        assert mine.region_id == theirs.region_id
        with pytest.raises(TransferError, match="of another process"):
            engine.deregister(theirs)
        with pytest.raises(TransferError, match="of another process"):
            engine.grant(theirs, [contiguous(0, 8)], "read", 1.0)
        found = np.ones(8, np.uint8)
        for reader, region in ((other, mine), (engine, theirs)):
            reader.read(region, [Read.into(contiguous(0, 8), found)])
        engine.deregister(mine)
        with pytest.raises(TransferError, match="is not registered"):
            engine.deregister(mine)


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_what_stays_on_a_host_is_not_paced_and_fits_the_cache(source: str) -> None:
    """A peer is on this host where both ends have one address; others keep what the host has for its network."""
    small = 2 * sockets.LOCAL_BUFFER_BYTES  # the kernel doubles it
    with socket.socket() as listener, socket.socket() as asker:
        listener.bind(("127.0.0.1", 0))
        sockets.set_buffers_of_listener(listener)
        listener.listen()
        asker.bind((source, 0))
        sockets.set_buffers_towards(asker, *listener.getsockname())
        asker.connect(listener.getsockname())
        of_host = asker.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        serving, _ = listener.accept()
        with serving:
            for sock in (asker, serving):
                sockets.prepare(sock, send_timeout_s=1, receive_timeout_s=1)
                control = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                assert control.startswith(b"reno") if source == "127.0.0.1" else control == of_host
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == small
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == small


def test_a_data_port_for_other_hosts_has_room_for_a_long_way() -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        sockets.set_buffers_of_listener(listener)
        room = listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert room > 2 * sockets.LOCAL_BUFFER_BYTES
