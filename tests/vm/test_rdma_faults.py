"""What goes wrong over RDMA ends in an error or in the right bytes, in time, and never lands late."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from vm.conftest import IMPATIENT, STEADY, MakeTransport, Peer
from vm.measured import report
from vm.peer import SIZE_BYTES, known_bytes, make_region

from daemons.core.errors import McError, TransferError, Unavailable
from daemons.protocol.segment import Generation
from daemons.transfer.strided import contiguous
from daemons.transfer.transports.base import (
    NotOver,
    Read,
    ReadBatch,
    StaleGeneration,
    Unreachable,
    Write,
    WriteBatch,
)
from daemons.transfer.transports.rdma import RdmaTransport

TIMEOUT_S = 60.0
SMALL = 4096


def small_read(
    peer: Peer, local: np.ndarray | None = None, timeout_s: float = TIMEOUT_S
) -> ReadBatch:
    local = np.zeros(SMALL, np.uint8) if local is None else local
    return ReadBatch(peer.source, [Read.into(contiguous(0, SMALL), local)], None, timeout_s)


def long_read(peer: Peer, local: np.ndarray) -> ReadBatch:
    return ReadBatch(peer.source, [Read.into(contiguous(0, SIZE_BYTES), local)], None, TIMEOUT_S)


def cable(verb: str, number: int) -> None:
    subprocess.run(["cable", verb, str(number)], check=True)


@contextmanager
def running(call: "threading.Thread") -> Iterator[threading.Thread]:
    call.start()
    yield call
    call.join(TIMEOUT_S)
    assert not call.is_alive()


def test_killed_peer_is_reported_in_time_and_remembered(
    make_transport: MakeTransport, own_peer: Peer
) -> None:
    transport = make_transport(IMPATIENT)
    transport.read(small_read(own_peer))
    own_peer.kill()
    started_s = time.monotonic()
    with pytest.raises(Unavailable):
        transport.read(small_read(own_peer))
    took_s = time.monotonic() - started_s
    report(f"killed peer reported after {took_s:.3f} s")
    assert took_s < 3
    assert not transport.reaches(own_peer.address)
    assert transport.num_endpoints == 0


def test_peer_killed_in_the_middle_of_a_read(make_transport: MakeTransport, own_peer: Peer) -> None:
    transport = make_transport(IMPATIENT)
    transport.read(small_read(own_peer))
    local = np.zeros(SIZE_BYTES, np.uint8)
    killer = threading.Timer(0.05, own_peer.kill)
    killer.start()
    with pytest.raises(Unavailable):
        _read_for_ever(transport, own_peer, local)
    before = local.copy()
    time.sleep(0.5)
    assert np.array_equal(local, before), "something landed after the error"


def test_silent_network_is_reported_in_time_and_remembered(
    make_transport: MakeTransport, own_peer: Peer
) -> None:
    transport = make_transport(IMPATIENT, device_names=["rxe0"])
    transport.read(small_read(own_peer))
    cable("mute", 0)
    try:
        started_s = time.monotonic()
        with pytest.raises(Unreachable, match="RETRY_EXC_ERR"):
            transport.read(small_read(own_peer))
        took_s = time.monotonic() - started_s
        report(f"silent network reported after {took_s:.3f} s")
        started_s = time.monotonic()
        with pytest.raises(Unreachable, match="RETRY_EXC_ERR"):
            transport.read(small_read(own_peer))
        assert time.monotonic() - started_s < took_s / 2, "the path is remembered"
    finally:
        cable("clear", 0)


@pytest.mark.parametrize("fault", ["down", "mute"])
def test_loss_of_one_of_two_devices_in_mid_transfer_loses_nothing(
    fault: str, make_transport: MakeTransport, own_peer: Peer
) -> None:
    transport = make_transport(STEADY)
    transport.read(small_read(own_peer))
    expected = known_bytes()
    local = np.zeros(SIZE_BYTES, np.uint8)
    failures: list[McError] = []

    def read() -> None:
        try:
            transport.read(long_read(own_peer, local))
        except McError as error:
            failures.append(error)

    try:
        with running(threading.Thread(target=read)):
            time.sleep(0.05)
            cable(fault, 0)
        assert not failures, failures
        assert np.array_equal(local, expected)
        local[:] = 0
        transport.read(long_read(own_peer, local))
        assert np.array_equal(local, expected), "over the other device alone"
    finally:
        cable("up", 0)
        cable("clear", 0)
    deadline_s = time.monotonic() + 30
    while not _uses_both(transport, own_peer, local):
        assert time.monotonic() < deadline_s, "the mended device is taken again"
        time.sleep(0.2)
    assert np.array_equal(local, expected)


def test_wrong_key_is_an_error_and_the_next_read_works(
    make_transport: MakeTransport, own_peer: Peer
) -> None:
    transport = make_transport()
    transport.read(small_read(own_peer))
    known = transport._peer(small_read(own_peer)).region(1)
    known.keys[:] = [[key ^ 0x5A5A00 for key in keys] for keys in known.keys]
    local = np.zeros(SMALL, np.uint8)
    # The refused key makes it ask the owner again, over a new connection.
    transport.read(small_read(own_peer, local))
    assert np.array_equal(local, known_bytes()[:SMALL])
    own_peer.ask("deregister", 1)
    with pytest.raises(TransferError, match="not registered"):
        transport.read(small_read(own_peer))


def test_deregistration_under_load_is_an_error_or_the_right_bytes(
    make_transport: MakeTransport, own_peer: Peer
) -> None:
    transport = make_transport()
    expected, stop = known_bytes(), threading.Event()
    problems: list[str] = []
    num_read = [0, 0]

    def load(number: int) -> None:
        local = np.zeros(64 << 10, np.uint8)
        while not stop.is_set():
            local[:] = 0
            transport.read(
                ReadBatch(
                    own_peer.source, [Read.into(contiguous(0, local.size), local)], None, TIMEOUT_S
                )
            )
            if not np.array_equal(local, expected[: local.size]):
                problems.append("wrong bytes")
            num_read[number] += 1

    threads = [threading.Thread(target=load, args=[i]) for i in range(2)]
    for thread in threads:
        thread.start()
    for round_number in range(3):
        own_peer.ask("register", 50 + round_number)
        local = np.zeros(1000, np.uint8)
        region = own_peer.region(50 + round_number, 1 << 20)
        batch = ReadBatch(region, [Read.into(contiguous(0, 1000), local)], None, TIMEOUT_S)
        transport.read(batch)
        assert (local == 5).all()
        own_peer.ask("deregister", 50 + round_number)
        with pytest.raises(TransferError, match="not registered"):
            transport.read(batch)
    stop.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert not problems
    assert min(num_read) > 0


def test_own_memory_is_not_given_up_under_a_transfer(
    make_transport: MakeTransport, own_peer: Peer
) -> None:
    transport = make_transport()
    memory = np.zeros(SIZE_BYTES, np.uint8)
    transport.register(make_region(9, memory))
    transport.read(small_read(own_peer))
    with running(threading.Thread(target=transport.read, args=[long_read(own_peer, memory)])):
        time.sleep(0.02)
        with pytest.raises(Unavailable, match="still the target"):
            transport.deregister(9, timeout_s=0)
    transport.deregister(9)
    assert np.array_equal(memory, known_bytes())


def test_cancelled_read_touches_nothing_afterwards(
    make_transport: MakeTransport, own_peer: Peer
) -> None:
    transport = make_transport()
    transport.read(small_read(own_peer))
    local = np.zeros(SIZE_BYTES, np.uint8)
    batch = long_read(own_peer, local)
    batch.cancelled = threading.Event()
    threading.Timer(0.03, batch.cancelled.set).start()
    with pytest.raises(TransferError, match="cancelled"):
        transport.read(batch)
    local[:] = 0x77
    time.sleep(0.5)
    assert (local == 0x77).all()


def test_puller_that_was_stopped_does_not_trust_a_reused_source(
    make_transport: MakeTransport, own_peer: Peer
) -> None:
    """The bytes arrive while the puller is stopped; before it goes on, the owner reuses the source."""
    transport = make_transport()
    transport.read(small_read(own_peer))
    word = Generation(region_id=3, index=9, value=1)
    transport.read(ReadBatch(own_peer.source, small_read(own_peer).reads, word, TIMEOUT_S))
    local = np.zeros(SMALL, np.uint8)

    def stopped(_: int) -> None:
        assert own_peer.ask("advance", 9) == 2

    reads = [Read.into(contiguous(0, SMALL), local)]
    with pytest.raises(StaleGeneration):
        transport.read(ReadBatch(own_peer.source, reads, word, TIMEOUT_S, on_read=stopped))


WRITER = """
import json, sys
import numpy as np
from daemons.core.ids import new_epoch
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.transfer.transports.base import Write, WriteBatch
from daemons.transfer.transports.rdma import RdmaTransport, Retries
import msgspec
region = msgspec.convert(json.loads(sys.argv[1]), RegionRef)
epoch = new_epoch()
transport = RdmaTransport(epoch, "127.0.0.1", device_names=["rxe0"], retries=Retries(14, 3))
local = np.full(1 << 20, 0xBB, np.uint8)
print(epoch, flush=True)
while True:
    transport.write(WriteBatch(region, [Write.at(0, local)], 30))
    print("wrote", flush=True)
"""


def test_stopped_writer_that_was_given_up_can_never_land(own_peer: Peer) -> None:
    region = json.dumps(msgspec.to_builtins(own_peer.writable))
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, region],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )
    try:
        assert writer.stdout is not None
        epoch = int(writer.stdout.readline())
        assert writer.stdout.readline() == "wrote\n"
        writer.send_signal(signal.SIGSTOP)
        own_peer.ask("cut_off", epoch)
        assert own_peer.ask("served") == 0
        own_peer.ask("deregister", 2)
        own_peer.ask("clear")
        writer.send_signal(signal.SIGCONT)
        _, errors = writer.communicate(timeout=TIMEOUT_S)
        assert "not registered" in errors
        assert not any(bytes.fromhex(own_peer.ask("written", 0, 1 << 20)))
    finally:
        writer.kill()
        writer.wait()
        for pipe in (writer.stdout, writer.stderr):
            assert pipe is not None
            pipe.close()


def test_write_to_a_stopped_target_is_not_over_until_it_closed_the_path(
    make_transport: MakeTransport, own_peer: Peer
) -> None:
    """A stopped process's device still serves; only with the network gone does a WRITE fail there."""
    transport = make_transport(IMPATIENT, device_names=["rxe0"])
    local = np.full(1 << 20, 0xCC, np.uint8)
    batch = WriteBatch(own_peer.writable, [Write.at(0, local)], TIMEOUT_S)
    transport.write(batch)
    own_peer.signal(signal.SIGSTOP)
    cable("mute", 0)
    try:
        with pytest.raises(NotOver) as caught:
            transport.write(WriteBatch(own_peer.writable, [Write.at(0, local)], TIMEOUT_S))
        assert not caught.value.path.wait_closed(0.2)
        own_peer.signal(signal.SIGCONT)
        assert caught.value.path.wait_closed(10)
        assert own_peer.ask("served") == 0
    finally:
        cable("clear", 0)


def _read_for_ever(transport: RdmaTransport, peer: Peer, local: np.ndarray) -> None:
    while True:
        transport.read(long_read(peer, local))


def _uses_both(transport: RdmaTransport, peer: Peer, local: np.ndarray) -> bool:
    local[:] = 0
    batch = long_read(peer, local)
    transport.read(batch)
    return all(path.num_open for path in transport._peer(batch).paths)
