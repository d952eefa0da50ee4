"""Who may do what: roles, capabilities, views and their pins, memory read across processes."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest
from kit.daemon import wait_for

from daemons.core.errors import TransferError, Unavailable
from daemons.core.ids import new_epoch
from daemons.protocol.segment import Generation, RegionRef
from daemons.transfer import (
    BadCapability,
    Pinned,
    Read,
    ReadBatch,
    SharedMemory,
    TransferEngine,
    Write,
    WriteBatch,
    allocate_shared,
    contiguous,
)
from daemons.transfer.memory import Region
from daemons.transfer.regions import RegionTable
from daemons.transfer.transports import cross_memory, server, service, shm_peer, sockets, wire
from daemons.transfer.transports.landing import PullSource, encode_pull_source

SIZE = 1 << 20


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(f"/tmp/mca-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    path.mkdir()
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


@pytest.fixture
def make_engine(directory: Path) -> Iterator[Callable[..., TransferEngine]]:
    engines: list[TransferEngine] = []

    def make(**settings: object) -> TransferEngine:
        engines.append(TransferEngine(epoch=new_epoch(), unix_dir=directory, **settings))  # type: ignore[arg-type]
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = allocate_shared("test", SIZE)
    memory.array[:] = np.random.default_rng(1).integers(1, 256, SIZE, np.uint8)
    yield memory
    memory.close()


def read(engine: TransferEngine, region: RegionRef, length: int = 100) -> bytes:
    target = np.zeros(length, np.uint8)
    engine.read(region, [Read.into(contiguous(0, length), target)], timeout_s=20)
    return target.tobytes()


def opened_by(engine: TransferEngine) -> list[str]:
    """How the engine holds its peers' regions: mapped, across, streamed."""
    assert engine._transports._shm is not None
    peers = engine._transports._shm._peers.values()
    kinds = ["mapped" for peer in peers for _ in peer.maps]
    return kinds + [
        "streamed" if found.address is None else "across"
        for peer in peers
        for found in peer.private.values()
    ]


@pytest.mark.parametrize(
    ("owner_secret", "reader_secret", "expected"),
    [
        (None, None, "mapped"),  # the same user
        (b"cluster", b"cluster", "mapped"),
        (b"cluster", None, "streamed"),  # the same user is not enough then
        (None, b"cluster", "mapped"),
    ],
)
def test_memory_is_mapped_for_daemons_only(
    make_engine: Callable[..., TransferEngine],
    memory: SharedMemory,
    owner_secret: bytes | None,
    reader_secret: bytes | None,
    expected: str,
) -> None:
    owner = make_engine(secret=owner_secret, require_capability=False)
    reader = make_engine(secret=reader_secret, transports=("shm",))
    region = owner.register(memory)
    assert read(reader, region) == memory.array[:100].tobytes()
    assert opened_by(reader) == [expected]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_wrong_secret_opens_nothing(
    make_engine: Callable[..., TransferEngine], memory: SharedMemory, transport: str
) -> None:
    owner, reader = make_engine(secret=b"one"), make_engine(secret=b"two", transports=(transport,))
    region = owner.register(memory)
    with pytest.raises(Unavailable, match="does not let us in"):
        read(reader, region)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_without_a_role_only_a_capability_moves_bytes(
    make_engine: Callable[..., TransferEngine], memory: SharedMemory, transport: str
) -> None:
    owner = make_engine(secret=b"cluster")  # which alone makes it ask for one
    tenant = make_engine(transports=(transport,))
    daemon = make_engine(transports=(transport,), secret=b"cluster")
    region, before = owner.register(memory, "read-write"), memory.array.copy()
    assert read(daemon, region) == before[:100].tobytes()

    target = np.zeros(100, np.uint8)
    inside, outside = contiguous(1000, 100), contiguous(1001, 100)
    reads = owner.grant(region, [inside], "read", 30).grant
    writes = owner.grant(region, [inside], "write", 30).grant
    forged = [
        None,
        writes,
        owner.grant(region, [inside], "read", 0.0).grant,
        msgspec.structs.replace(reads, ranges=[outside]),
        msgspec.structs.replace(reads, mac=bytes(16)),
        daemon.grant(daemon.register(bytearray(2000)), [inside], "read", 30).grant,
    ]
    for grant in forged:
        with pytest.raises(BadCapability):
            tenant.read(region, [Read.into(inside, target)], capability=grant)
    with pytest.raises(BadCapability):
        tenant.read(region, [Read.into(outside, target)], capability=reads)
    assert not target.any()
    tenant.read(region, [Read.into(inside, target)], capability=reads)
    assert np.array_equal(target, before[1000:1100])

    for grant in (None, reads):
        for length in (100, 500_000):
            with pytest.raises(BadCapability):
                tenant.write(region, [Write.at(1000, np.zeros(length, np.uint8))], capability=grant)
    assert np.array_equal(memory.array, before)
    with pytest.raises(BadCapability):
        tenant.run(ReadBatch(region, [], notify=b"spam"))
    batch = WriteBatch(
        region, [Write.at(1000, np.zeros(100, np.uint8))], capability=writes, notify=b"done"
    )
    tenant.run(batch)
    assert not memory.array[1000:1100].any()
    assert [note.message for note in owner.notifications(20)] == [b"done"]
    with pytest.raises(TransferError):
        tenant.view(region, [inside])


@pytest.mark.parametrize("op", [wire.Op.READ, wire.Op.NOTIFY])
def test_a_capability_without_bottom_is_refused_and_the_port_lives_on(
    make_engine: Callable[..., TransferEngine], memory: SharedMemory, op: wire.Op
) -> None:
    owner = make_engine(secret=b"cluster")
    daemon = make_engine(transports=("tcp",), secret=b"cluster")
    region = owner.register(memory)
    given = owner.grant(region, [contiguous(0, 100)], "read", 30).grant
    packed = msgspec.msgpack.encode(given)
    ranges = (contiguous(0, 100),) if op == wire.Op.READ else ()
    deep = bytes([packed[0] + 1]) + packed[1:] + b"\x91" * 50_000 + b"\xc0"
    request = wire.Request(
        op, region.address.epoch, region.region_id, ranges=ranges, capability=deep
    )
    host, _, port = region.address.tcp.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(wire.encode_request(request))
        reply = sock.recv(wire.REPLY.size, socket.MSG_WAITALL)
        assert wire.REPLY.unpack(reply)[1] == wire.Status.FORBIDDEN
    assert read(daemon, region) == memory.array[:100].tobytes()


def test_strangers_that_are_slow_hold_up_no_daemon(
    make_engine: Callable[..., TransferEngine], memory: SharedMemory
) -> None:
    """Each has a worker busy with a WRITE that is refused and never sent; there are more of them than connections."""
    owner = make_engine(secret=b"cluster")
    daemon = make_engine(transports=("tcp",), secret=b"cluster")
    region = owner.register(memory, "read-write")
    assert read(daemon, region) == memory.array[:100].tobytes()
    request = wire.Request(
        wire.Op.WRITE, region.address.epoch, region.region_id, ranges=(contiguous(0, SIZE),)
    )
    host, _, port = region.address.tcp.rpartition(":")
    with ExitStack() as strangers:
        for _ in range(300):
            sock = strangers.enter_context(socket.create_connection((host, int(port)), timeout=60))
            sock.sendall(wire.encode_request(request))
        late = make_engine(transports=("tcp",), secret=b"cluster")
        for reader in (daemon, late):
            assert read(reader, region) == memory.array[:100].tobytes()
            assert read(reader, region, SIZE) == memory.array.tobytes(), "by a worker"


def test_peers_that_ask_without_a_pause_keep_nobody_out(
    make_engine: Callable[..., TransferEngine], memory: SharedMemory
) -> None:
    """More of their connections than there are workers for strangers, each with its next request at once."""
    owner = make_engine(secret=b"cluster")
    region = owner.register(memory)
    grant = owner.grant(region, [contiguous(0, 100)], "read", 60.0).grant
    busy = [make_engine(transports=("tcp",)) for _ in range(3)]
    is_over = threading.Event()

    def ask(engine: TransferEngine) -> bytes:
        target = np.zeros(100, np.uint8)
        engine.read(region, [Read.into(contiguous(0, 100), target)], timeout_s=20, capability=grant)
        return target.tobytes()

    def ask_on(engine: TransferEngine) -> int:
        count = 0
        while not is_over.is_set():
            ask(engine)
            count += 1
        return count

    with ThreadPoolExecutor(24) as askers:
        asking = [askers.submit(ask_on, engine) for engine in busy for _ in range(8)]
        try:
            for _ in range(5):
                assert ask(make_engine(transports=("tcp",))) == memory.array[:100].tobytes()
        finally:
            is_over.set()
        assert all(asked.result() for asked in asking)


def test_a_bug_costs_one_connection_and_not_the_port(
    make_engine: Callable[..., TransferEngine],
    memory: SharedMemory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, reader = make_engine(), make_engine(transports=("tcp",))
    region = owner.register(memory)
    with monkeypatch.context() as patch:
        patch.setattr(service.Service, "serve_quick", lambda *_: False)
        patch.setattr(service.Service, "serve", lambda *_: [][0])
        with pytest.raises(Unavailable):
            reader.run(ReadBatch(region, [], notify=b"on the port's own thread"))
        with pytest.raises(Unavailable):
            read(reader, region)
    assert read(reader, region) == memory.array[:100].tobytes()
    reader.run(ReadBatch(region, [], notify=b"on the port's own thread"))


def test_a_view_shows_the_memory_and_keeps_it_registered(
    make_engine: Callable[..., TransferEngine], memory: SharedMemory
) -> None:
    owner, reader = make_engine(), make_engine(transports=("shm",))
    region = owner.register(memory)
    with reader.view(region, [contiguous(5, 10)]) as view:
        memory.array[5] = 77
        assert view.arrays[0][0, 0] == 77
        assert not view.arrays[0].flags.writeable
        with pytest.raises(Pinned, match="1 views"):
            owner.deregister(region, timeout_s=0.2)
    owner.deregister(region, timeout_s=60)
    with pytest.raises(TransferError, match="not registered"):
        reader.view(region, [contiguous(0, 1)])


def test_views_of_one_region_share_a_pin_that_outlives_them_for_a_moment(
    make_engine: Callable[..., TransferEngine],
    memory: SharedMemory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, reader = make_engine(), make_engine(transports=("shm",))
    region = owner.register(memory)
    pins: list[int] = []
    pin, unpin = RegionTable.pin, RegionTable.unpin

    def counted_pin(table: RegionTable, region_id: int) -> Region:
        pins.append(1)
        return pin(table, region_id)

    def counted_unpin(table: RegionTable, region_id: int, count: int = 1) -> None:
        pins.append(-count)
        unpin(table, region_id, count)

    monkeypatch.setattr(RegionTable, "pin", counted_pin)
    monkeypatch.setattr(RegionTable, "unpin", counted_unpin)
    monkeypatch.setattr(shm_peer, "UNPIN_AFTER_S", 0.1)
    first = reader.view(region, [contiguous(0, 10)])
    for _ in range(100):
        reader.view(region, [contiguous(5, 10)]).close()
    assert pins == [1]
    first.close()
    owner.deregister(region, timeout_s=60)
    assert pins == [1, -1]


def test_private_memory_has_no_views(make_engine: Callable[..., TransferEngine]) -> None:
    owner, reader = make_engine(), make_engine(transports=("shm",))
    region = owner.register(bytearray(100))
    with pytest.raises(TransferError, match="no views"):
        reader.view(region, [contiguous(0, 1)])
    with pytest.raises(TransferError, match="does not fit"):
        reader.view(region, [contiguous(99, 2)])
    owner.deregister(region)


VIEWER = """
import sys
from pathlib import Path
import msgspec
from daemons.core.ids import new_epoch
from daemons.protocol.segment import Generation, RegionRef
from daemons.transfer import TransferEngine, contiguous
engine = TransferEngine(epoch=new_epoch(), unix_dir=Path(sys.argv[1]), transports=("shm",))
view = engine.view(msgspec.json.decode(sys.argv[2], type=RegionRef), [contiguous(0, 8)])
print(int(view.arrays[0].sum()), flush=True)
sys.stdin.read()
"""


def test_a_pin_ends_with_the_process_of_its_view(
    make_engine: Callable[..., TransferEngine], memory: SharedMemory, directory: Path
) -> None:
    owner = make_engine()
    region = owner.register(memory)
    told = msgspec.json.encode(region).decode()
    viewer = subprocess.Popen(
        [sys.executable, "-c", VIEWER, str(directory), told],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert viewer.stdout is not None
    assert int(viewer.stdout.readline()) == int(memory.array[:8].sum())
    with pytest.raises(Pinned):
        owner.deregister(region)
    viewer.kill()
    owner.deregister(region, timeout_s=60)
    viewer.communicate()


def test_private_memory_is_read_across_where_permitted(
    make_engine: Callable[..., TransferEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = make_engine()
    data = np.random.default_rng(2).integers(0, 256, 300_000, np.uint8)
    region = owner.register(data)
    across = make_engine(transports=("shm",))
    assert read(across, region, 300_000) == data.tobytes()
    assert opened_by(across) in (["across"], ["streamed"])
    monkeypatch.setattr(cross_memory, "is_permitted", lambda *_: False)
    streaming = make_engine(transports=("shm",))
    assert read(streaming, region, 300_000) == data.tobytes()
    assert opened_by(streaming) == ["streamed"]


def test_a_writer_streams_where_its_memory_cannot_be_read(
    make_engine: Callable[..., TransferEngine],
    memory: SharedMemory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(cross_memory, "read", refuse)
    owner, writer = make_engine(), make_engine(transports=("shm",))
    region, data = owner.register(memory, "read-write"), np.full(SIZE, 3, np.uint8)
    writer.write(region, [Write.at(0, data)])
    assert (memory.array == 3).all()


def test_a_daemon_cannot_make_us_read_outside_of_what_it_names(
    make_engine: Callable[..., TransferEngine], memory: SharedMemory
) -> None:
    """A PULL whose source lies: nothing lands, the port lives on."""
    owner, other = make_engine(), make_engine(transports=("shm",))
    region, before = owner.register(memory, "read-write"), memory.array.copy()
    assert other._transports._shm is not None
    stream = other._transports._shm._peer(region.address, 1.0).stream
    batch = WriteBatch(region, [Write.at(0, np.zeros(100, np.uint8))])
    for bad in (
        PullSource(region=None, ranges=[contiguous(0, 100)]),
        PullSource(region=None, ranges=[contiguous((1 << 64) - 200, 100)]),
        PullSource(region=None, ranges=[contiguous(4096, 99)]),
        PullSource(region=region, ranges=[contiguous(SIZE, 100)]),
        PullSource(region=region, ranges=[]),
    ):
        with pytest.raises(TransferError):
            stream.ask_to_pull(batch, [encode_pull_source(bad)])
    for junk in (b"", b"\xc1", bytes(50)):
        with pytest.raises(TransferError):
            stream.ask_to_pull(batch, [junk])
    assert np.array_equal(memory.array, before)


class Dripping:
    """A peer that answers its first READ at once, and from the second on sends a byte now and then."""

    def __init__(self) -> None:
        self._is_plain = True
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.hung_up = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def region(self, engine: TransferEngine) -> RegionRef:
        port = self.listener.getsockname()[1]
        address = msgspec.structs.replace(
            engine.address, epoch=new_epoch(), tcp=f"127.0.0.1:{port}", unix_path="", host_id=""
        )
        return RegionRef(address=address, region_id=1, size_bytes=SIZE)

    def close(self) -> None:
        sockets.shut(self.listener)
        self.thread.join()
        self.listener.close()

    def _serve(self) -> None:
        sock, _ = self.listener.accept()
        with sock:
            while frame := sock.recv(1 << 16):
                request = wire.decode_request(frame)
                length = sum(ranges.length for ranges in request.ranges)
                sock.sendall(wire.reply(wire.Status.OK, length))
                if request.op == wire.Op.READ and not self._is_plain:
                    self._drip(sock)
                    return
                if request.op == wire.Op.READ:
                    self._is_plain = False
                    sock.sendall(bytes(length) + wire.TRAILER.pack(wire.MAGIC, 0))

    def _drip(self, sock: socket.socket) -> None:
        end_s = time.monotonic() + 20
        try:
            while time.monotonic() < end_s:
                sock.send(b"x")
                time.sleep(0.01)
        except OSError:
            self.hung_up.set()


@pytest.mark.parametrize(("length", "word"), [(wire.MAX_INLINE, 0), (1 << 18, None), (1 << 18, 0)])
def test_a_peer_that_sends_a_byte_now_and_then_moves_no_deadline(
    make_engine: Callable[..., TransferEngine], length: int, word: int | None
) -> None:
    """However the READ goes: with a generation, by the short way, by the long one."""
    reader, target = make_engine(transports=("tcp",)), np.zeros(length, np.uint8)
    generation = None if word is None else Generation(region_id=1, index=0, value=word)
    with contextlib.closing(Dripping()) as peer:
        region, reads = peer.region(reader), [Read.into(contiguous(0, length), target)]
        reader.read(region, reads, timeout_s=60, generation=generation)
        with pytest.raises(Unavailable):
            reader.read(region, reads, timeout_s=0.2, generation=generation)
        assert peer.hung_up.wait(20), "it was read from for as long as it sent"


def test_what_must_be_there_within_a_time_may_not_come_a_byte_at_a_time() -> None:
    near, far = socket.socketpair()
    is_over = threading.Event()

    def drip() -> None:
        while not is_over.wait(0.01):
            far.send(b"x")

    with near, far, ThreadPoolExecutor(1) as others:
        near.settimeout(0.2)
        dripping = others.submit(drip)
        try:
            with pytest.raises(TimeoutError):
                sockets.receive_exactly(near, 1000)
        finally:
            is_over.set()
        dripping.result()
        assert near.gettimeout() == 0.2


def test_a_connection_ends_where_an_answer_stalls_in_its_middle(
    make_engine: Callable[..., TransferEngine],
    memory: SharedMemory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second request is answered by who still waits for one; what is left out would be taken for an answer."""
    monkeypatch.setattr(server, "STALL_S", 0.1)
    owner = make_engine(transports=("tcp",))
    region = owner.register(memory)
    first, all_of_it = (
        wire.encode_request(
            wire.Request(
                wire.Op.READ,
                region.address.epoch,
                region.region_id,
                ranges=(contiguous(0, length),) * 8,
            )
        )
        for length in (100, SIZE)
    )
    host, _, port = region.address.tcp.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        frame_bytes = wire.REPLY.size + wire.TRAILER.size
        sock.sendall(first)
        assert len(sock.recv(frame_bytes + 800, socket.MSG_WAITALL)) == frame_bytes + 800
        sock.sendall(all_of_it)
        wait_for(lambda: owner._server.num_connections == 0, what="its end")
        received = 0
        while part := sock.recv(1 << 20):
            received += len(part)
        assert received < 8 * SIZE
