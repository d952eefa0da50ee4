"""CUDA tensors as regions and as the local side of transfers, over every way there is without a NIC."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kit import cuda as kit_cuda
from kit.cuda import CudaTensor
from numpy.typing import NDArray

from daemons.core.errors import TransferError, Unavailable
from daemons.core.units import MIB
from daemons.protocol.segment import Strided
from daemons.transfer import (
    GenerationTable,
    Read,
    ReadBatch,
    StaleGeneration,
    TransferEngine,
    Write,
    as_memory,
    contiguous,
    cuda,
)

SIZE = 9 * MIB + 513
"""More than passes through host memory at once."""

ROWS = Strided(offset=100, row_bytes=3000, num_rows=300, stride_bytes=7000)
WIDE = Strided(offset=7, row_bytes=9000, num_rows=100, stride_bytes=9001)


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    with kit_cuda.driver() as library:
        yield library


@pytest.fixture(params=["tcp", "shm", "loopback"])
def engines(
    request: pytest.FixtureRequest, tmp_path: Path, library: ctypes.CDLL
) -> Iterator[tuple[TransferEngine, TransferEngine]]:
    """(the owner of memory, who asks for it)."""
    assert library
    transports = ("tcp",) if request.param == "tcp" else ("shm",)
    with TransferEngine(transports=transports, unix_dir=tmp_path / "owner") as owner:
        if request.param == "loopback":
            yield owner, owner
            return
        with TransferEngine(transports=transports, unix_dir=tmp_path / "asker") as asker:
            yield owner, asker


def noise(seed: int, num_bytes: int = SIZE) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, num_bytes, np.uint8)


def rows_of(values: NDArray[np.uint8], ranges: Strided) -> NDArray[np.uint8]:
    starts = range(ranges.num_rows)
    rows = [values[ranges.offset + i * ranges.stride_bytes :][: ranges.row_bytes] for i in starts]
    return np.concatenate(rows)


def test_a_gpus_memory_is_read_and_written_like_any_other(
    library: ctypes.CDLL, engines: tuple[TransferEngine, TransferEngine]
) -> None:
    owner, asker = engines
    values = noise(1)
    tensor = CudaTensor(library, values)
    region = owner.register(tensor, "read-write")
    assert region.size_bytes == SIZE
    local = np.zeros(SIZE, np.uint8)

    asker.read(region, [Read.into(contiguous(0, SIZE), local)])
    assert (local == values).all()
    asker.read(region, [Read.into(ROWS, local), Read.into(contiguous(5, 9), local, SIZE - 9)])
    assert (local[: ROWS.length] == rows_of(values, ROWS)).all()
    assert (local[-9:] == values[5:14]).all()

    for length in (100, 1 * MIB, SIZE):  # of which small ones ride in the request
        written = noise(length, length)
        asker.write(region, [Write.at(SIZE - length, written)], notify=b"done")
        values[SIZE - length :] = written
        assert (tensor.cpu() == values).all()
        assert owner.notifications(20.0)[0].message == b"done"
    asker.write(region, [Write(local, contiguous(0, WIDE.length), WIDE)])
    assert (rows_of(tensor.cpu(), WIDE) == local[: WIDE.length]).all()
    owner.deregister(region)
    with pytest.raises(TransferError):
        asker.read(region, [Read.into(contiguous(0, 8), local)])


def test_from_gpu_to_gpu(
    library: ctypes.CDLL, engines: tuple[TransferEngine, TransferEngine]
) -> None:
    owner, asker = engines
    there = CudaTensor(library, noise(2))
    here = CudaTensor(library, noise(3))
    region, mine = owner.register(there, "read-write"), as_memory(here)
    done: list[int] = []
    batch = ReadBatch(region, [Read(ROWS, mine, contiguous(11, ROWS.length))], progress=done.append)
    handle = asker.submit([batch])
    handle.wait(30)
    assert (here.cpu()[11 : 11 + ROWS.length] == rows_of(there.cpu(), ROWS)).all()
    assert done == [0]
    asker.write(region, [Write.at(0, mine)])
    assert (there.cpu() == here.cpu()).all()


def test_a_reused_source_is_noticed_in_a_gpus_memory_too(
    library: ctypes.CDLL, engines: tuple[TransferEngine, TransferEngine]
) -> None:
    owner, asker = engines
    region = owner.register(CudaTensor(library, noise(4)))
    words = GenerationTable(owner, 1)
    local = as_memory(CudaTensor(library, np.zeros(100, np.uint8)))
    reads = [Read.into(contiguous(0, 100), local)]

    before = words.guard(0)
    asker.read(region, reads, generation=before)
    words.advance(0)
    with pytest.raises(StaleGeneration):
        asker.read(region, reads, generation=before)
    asker.read(region, reads, generation=words.guard(0))


def test_what_the_gpu_refuses_ends_the_transfer_and_nothing_wrong_is_believed(
    library: ctypes.CDLL, engines: tuple[TransferEngine, TransferEngine]
) -> None:
    owner, asker = engines
    good = owner.register(bytearray(b"still served"))
    tensor = CudaTensor(library, np.ones(4096, np.uint8))
    tensor._size_bytes = 256 * MIB  # more than the device has
    region = owner.register(tensor, "read-write")
    local = np.zeros(4 * MIB, np.uint8)
    at = contiguous(200 * MIB, local.nbytes)
    with pytest.raises((Unavailable, TransferError)):
        asker.read(region, [Read.into(at, local)], timeout_s=20)
    with pytest.raises((Unavailable, TransferError)):
        asker.write(region, [Write(local, contiguous(0, local.nbytes), at)], timeout_s=20)
    asker.read(good, [Read.into(contiguous(0, 12), local)])
    assert local[:12].tobytes() == b"still served"


def test_staging_memory_is_used_again(
    library: ctypes.CDLL, engines: tuple[TransferEngine, TransferEngine]
) -> None:
    owner, asker = engines
    region = owner.register(CudaTensor(library, noise(5, 1000)), "read-write")
    local = np.zeros(1000, np.uint8)

    def move() -> None:
        asker.read(region, [Read.into(contiguous(0, 1000), local)])
        asker.write(region, [Write.at(0, local)])

    move()
    before = library.test_num_pinned()
    for _ in range(20):
        move()
    assert library.test_num_pinned() == before


def test_no_view_of_a_gpus_memory(library: ctypes.CDLL, tmp_path: Path) -> None:
    with TransferEngine(unix_dir=tmp_path) as owner, TransferEngine(unix_dir=tmp_path) as other:
        region = owner.register(CudaTensor(library, noise(6, 100)))
        for engine in (owner, other):
            with pytest.raises(TransferError, match=r"READ it|private memory"):
                engine.view(region, [contiguous(0, 100)])


def test_memory_of_one_gpu_is_registered_once(library: ctypes.CDLL) -> None:
    with TransferEngine(transports=("tcp",)) as engine:
        tensor = CudaTensor(library, noise(7, 5000))
        engine.register(tensor)
        with pytest.raises(TransferError, match="overlaps"):
            engine.register(tensor)


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this host has the driver")  # noqa: PTH110
def test_without_the_nvidia_driver_the_message_says_so() -> None:
    cuda.load_driver.cache_clear()

    class Tensor(CudaTensor):
        def __init__(self) -> None:
            self._size_bytes, self._address = 64, 1 << 56

    with (
        TransferEngine(transports=("tcp",)) as engine,
        pytest.raises(TransferError, match=r"needs the NVIDIA driver.*libcuda"),
    ):
        engine.register(Tensor())
