"""READ and WRITE between two processes over Soft-RoCE: every byte, whatever the shape."""

import ctypes
import gc
import mmap
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from vm.conftest import MakeTransport, Nursery, Peer
from vm.peer import SIZE_BYTES, credential_of, known_bytes, make_region

from daemons.core.errors import TransferError
from daemons.protocol.segment import Generation, Strided
from daemons.transfer import GenerationTable, TransferEngine
from daemons.transfer.memory import allocate_shared
from daemons.transfer.strided import contiguous, copy
from daemons.transfer.transports.base import (
    Read,
    ReadBatch,
    StaleEpoch,
    StaleGeneration,
    Write,
    WriteBatch,
)
from daemons.transfer.transports.rdma import RdmaTransport

TIMEOUT_S = 60.0
WORD = Generation(region_id=3, index=2, value=1)

SHAPES = {
    "one byte": (contiguous(123, 1), contiguous(7, 1)),
    "4 KiB": (contiguous(8192, 4096), contiguous(0, 4096)),
    "odd 3 MiB over both devices": (contiguous(5, 3 << 20), contiguous(9, 3 << 20)),
    "all of it": (contiguous(0, 4 << 20), contiguous(0, 4 << 20)),
    "rows into one run": (
        Strided(offset=3, row_bytes=5000, num_rows=50, stride_bytes=70001),
        None,
    ),
    "one run into rows": (
        contiguous(1 << 20, 64 * 4096),
        Strided(offset=100, row_bytes=4096, num_rows=64, stride_bytes=9000),
    ),
    "rows into other rows": (
        Strided(offset=11, row_bytes=3000, num_rows=200, stride_bytes=5000),
        Strided(offset=77, row_bytes=1000, num_rows=600, stride_bytes=1100),
    ),
    "rows that do not divide": (
        Strided(offset=1, row_bytes=700, num_rows=30, stride_bytes=999),
        Strided(offset=2, row_bytes=300, num_rows=70, stride_bytes=301),
    ),
    "dense rows": (
        Strided(offset=64, row_bytes=1 << 16, num_rows=10, stride_bytes=1 << 16),
        Strided(offset=0, row_bytes=1 << 17, num_rows=5, stride_bytes=1 << 17),
    ),
}


@pytest.fixture(scope="module")
def transport(make_module_transport: MakeTransport) -> RdmaTransport:
    return make_module_transport()


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return known_bytes()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("is_registered", [True, False], ids=["registered", "passing"])
def test_read_of_any_shape_moves_those_bytes_and_no_other(
    name: str, is_registered: bool, transport: RdmaTransport, peer: Peer, expected: np.ndarray
) -> None:
    remote, target = SHAPES[name]
    target = target or contiguous(50, remote.length)
    memory = allocate_shared("target", SIZE_BYTES)
    memory.array[:] = 0xAA
    want = memory.array.copy()
    copy(expected, remote, want, target)
    if is_registered:
        transport.register(make_region(9, memory))
    transport.read(ReadBatch(peer.source, [Read(remote, memory.array, target)], WORD, TIMEOUT_S))
    if is_registered:
        transport.deregister(9)
    assert np.array_equal(memory.array, want)


@pytest.mark.parametrize("name", SHAPES)
def test_write_of_any_shape_is_readable_at_the_target(
    name: str, transport: RdmaTransport, peer: Peer, expected: np.ndarray
) -> None:
    remote, source = SHAPES[name]
    source = source or contiguous(50, remote.length)
    peer.ask("clear")
    transport.write(WriteBatch(peer.writable, [Write(expected, source, remote)], TIMEOUT_S))
    want = np.zeros(SIZE_BYTES, np.uint8)
    copy(expected, source, want, remote)
    start, end = max(remote.offset - 64, 0), min(remote.end + 64, SIZE_BYTES, remote.offset + 65536)
    there = bytes.fromhex(peer.ask("written", start, end - start))
    assert there == want[start:end].tobytes()
    got = np.zeros(SIZE_BYTES, np.uint8)
    transport.read(ReadBatch(peer.writable, [Read.into(contiguous(0, end), got)], None, TIMEOUT_S))
    assert np.array_equal(got[:end], want[:end])


def test_batch_calls_back_in_order_once_bytes_are_there(
    transport: RdmaTransport, peer: Peer, expected: np.ndarray
) -> None:
    local = np.zeros(SIZE_BYTES, np.uint8)
    seen: list[int] = []

    def check(index: int) -> None:
        part = slice(index << 20, (index + 1) << 20)
        assert np.array_equal(local[part], expected[part])
        seen.append(index)

    reads = [Read.into(contiguous(i << 20, 1 << 20), local, i << 20) for i in range(4)]
    transport.read(ReadBatch(peer.source, reads, WORD, TIMEOUT_S, on_read=check))
    assert seen == list(range(4))


def test_memory_of_every_kind_can_be_a_target(
    transport: RdmaTransport, peer: Peer, expected: np.ndarray
) -> None:
    size = 2 << 20
    tmpfs = os.open("/dev/shm/mooncake-test", os.O_CREAT | os.O_RDWR)
    os.ftruncate(tmpfs, size)
    huge = os.memfd_create("huge", os.MFD_HUGETLB)
    os.ftruncate(huge, size)
    kinds = {
        "anonymous": mmap.mmap(-1, size),
        "tmpfs file": mmap.mmap(tmpfs, size),
        "huge memfd": mmap.mmap(huge, size),
        "bytearray": bytearray(size),
    }
    for number, (name, memory) in enumerate(kinds.items(), 20):
        array = np.frombuffer(memory, np.uint8)
        transport.register(make_region(number, array))
        reads = [Read.into(contiguous(100, size - 1), array, 1)]
        transport.read(ReadBatch(peer.source, reads, WORD, TIMEOUT_S))
        assert np.array_equal(array[1:], expected[100 : 99 + size]), name
        transport.deregister(number)
    os.close(tmpfs)
    os.close(huge)
    Path("/dev/shm/mooncake-test").unlink()


def test_both_devices_carry_a_long_read(transport: RdmaTransport, peer: Peer) -> None:
    before = _sent_packets()
    local = np.zeros(SIZE_BYTES, np.uint8)
    reads = [Read.into(contiguous(0, SIZE_BYTES), local)]
    transport.read(ReadBatch(peer.source, reads, None, TIMEOUT_S))
    carried = [after - at for after, at in zip(_sent_packets(), before, strict=True)]
    assert min(carried) > 200, f"packets over each cable: {carried}"


def test_no_transfer_above_was_saved_by_a_second_try(transport: RdmaTransport, peer: Peer) -> None:
    batch = ReadBatch(peer.source, [Read.into(contiguous(0, 1), np.zeros(1, np.uint8))])
    of_peer = transport._peer(batch)
    assert len(of_peer.paths) == 2
    assert of_peer.routes.reasons() == ""
    assert peer.ask("served") == transport.num_endpoints


def test_wrong_epoch_range_region_and_generation_are_refused(
    transport: RdmaTransport, peer: Peer
) -> None:
    local = np.zeros(4096, np.uint8)
    reads = [Read.into(contiguous(0, 4096), local)]
    wrong = Generation(region_id=3, index=2, value=5)
    with pytest.raises(StaleGeneration):
        transport.read(ReadBatch(peer.source, reads, wrong, TIMEOUT_S))
    local[:] = 0
    older = msgspec.structs.replace(peer.address, epoch=peer.address.epoch + 2)
    stale = msgspec.structs.replace(peer.source, address=older)
    with pytest.raises(StaleEpoch):
        transport.read(ReadBatch(stale, reads, None, TIMEOUT_S))
    with pytest.raises(TransferError, match="region 77 is not registered"):
        transport.read(ReadBatch(peer.region(77), reads, None, TIMEOUT_S))
    with pytest.raises(TransferError, match="has 4194304 bytes"):
        transport.read(ReadBatch(peer.region(1, SIZE_BYTES + 1), reads, None, TIMEOUT_S))
    with pytest.raises(TransferError, match="READ only"):
        transport.write(WriteBatch(peer.source, [Write.at(0, local)], TIMEOUT_S))
    assert not local.any()


def test_keys_are_for_those_who_know_the_secret(
    make_transport: MakeTransport, nursery: Nursery
) -> None:
    guarded = nursery.start(secret="moon")
    try:
        reads = [Read.into(contiguous(0, 64), np.zeros(64, np.uint8))]
        batch = ReadBatch(guarded.source, reads, None, TIMEOUT_S)
        make_transport(credential=credential_of("moon")).read(batch)
        for secret in ("", "sun"):
            with pytest.raises(Exception, match=r"RDMA|gone|connect") as caught:
                make_transport(credential=credential_of(secret)).read(batch)
            assert "rkey" not in str(caught.value)
        assert guarded.ask("served") >= 1
    finally:
        guarded.stop()


def test_notification_comes_after_the_data(transport: RdmaTransport, peer: Peer) -> None:
    batch = WriteBatch(peer.writable, [Write.at(0, np.full(100, 3, np.uint8))], TIMEOUT_S)
    transport.write(batch)
    transport.notify(batch, b"there")
    assert [2, "there"] in peer.ask("notifications")


def test_engines_read_write_and_notify_by_rdma_alone(nursery: Nursery) -> None:
    assert nursery
    mine, other = (TransferEngine(transports=("rdma",)) for _ in range(2))
    try:
        memory = np.arange(2 << 20, dtype=np.uint8)
        region = other.register(memory, "read-write")
        table = GenerationTable(other, 4)
        assert region.address.rdma
        assert not region.address.tcp
        local = np.zeros(memory.size, np.uint8)
        mine.read(region, [Read.into(contiguous(0, memory.size), local)], generation=table.guard(1))
        assert np.array_equal(local, memory)
        local[:] = 9
        handle = mine.submit(
            [WriteBatch(region, [Write.at(0, local)], TIMEOUT_S, notify=b"written")]
        )
        handle.wait(TIMEOUT_S)
        assert np.array_equal(local, memory)
        assert [each.message for each in other.notifications(1.0)] == [b"written"]
        guard = table.guard(1)
        table.advance(1)
        with pytest.raises(StaleGeneration):
            mine.read(region, [Read.into(contiguous(0, 64), local)], generation=guard)
        table.close()
        other.deregister(region)
        with pytest.raises(TransferError, match="not registered"):
            mine.read(region, [Read.into(contiguous(0, 64), local)])
    finally:
        mine.close()
        other.close()


def test_thousand_transfers_leak_nothing(transport: RdmaTransport, peer: Peer) -> None:
    memory = allocate_shared("target", 64 << 10)
    transport.register(make_region(9, memory))
    reads = [
        Read.into(Strided(offset=0, row_bytes=64, num_rows=16, stride_bytes=4096), memory.array)
    ]

    def run(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            transport.read(ReadBatch(peer.source, reads, WORD, TIMEOUT_S))
        return _num_descriptors(), transport.num_endpoints, peer.ask("served")

    before = run(100)
    in_use = _allocated_bytes()
    assert run(1000) == before
    grown = _allocated_bytes() - in_use
    # 17000 work requests of 62 bytes would be a megabyte.
    assert grown < 100 << 10, f"{grown} bytes more are allocated"
    transport.deregister(9)


def _sent_packets() -> list[int]:
    files = [Path(f"/sys/class/net/{name}/statistics/tx_packets") for name in ("nic0p", "nic1p")]
    return [int(file.read_text()) for file in files]


def _num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class _Mallinfo(ctypes.Structure):
    _fields_ = (
        [(name, ctypes.c_size_t) for name in "abcdefg"]
        + [("used", ctypes.c_size_t)]
        + [(name, ctypes.c_size_t) for name in "ij"]
    )


def _allocated_bytes() -> int:
    """What C code holds, pyverbs' work requests among it."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo
    return int(mallinfo2().used)
