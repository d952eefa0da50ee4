"""The short form of a batch takes only what the long way's checks would let pass, and then exactly those bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.core.errors import TransferError
from daemons.core.ids import Epoch, HostId
from daemons.protocol.segment import DataAddress, RegionRef, Strided
from daemons.transfer.strided import ByteArray, contiguous
from daemons.transfer.transports import wire
from daemons.transfer.transports.base import Read, ReadBatch, Write, WriteBatch
from daemons.transfer.transports.runs import runs_of_reads, runs_of_writes

ADDRESS = DataAddress(host_id=HostId("h"), unix_path="", tcp="127.0.0.1:1", epoch=Epoch(7))
LOCALS = [np.arange(20, dtype=np.uint8), np.arange(100, 124, dtype=np.uint8)]
NUMBERS = st.integers(-3, 24)
RANGES = st.builds(
    lambda offset, row, rows, stride: Strided(
        offset=offset, row_bytes=row, num_rows=rows, stride_bytes=stride
    ),
    NUMBERS,
    NUMBERS,
    st.integers(0, 3),
    NUMBERS,
)
SHORT = st.builds(contiguous, st.integers(0, 6), st.integers(1, 4))
ANY = st.lists(st.tuples(st.sampled_from(LOCALS), RANGES, RANGES), max_size=2)
FITTING = st.lists(
    st.tuples(st.sampled_from(LOCALS), SHORT, st.integers(0, 6)).map(
        lambda part: (part[0], part[1], contiguous(part[2], part[1].row_bytes))
    ),
    min_size=1,
    max_size=6,
)


def region_of(size_bytes: int, region_id: int = 0) -> RegionRef:
    return RegionRef(address=ADDRESS, region_id=region_id, size_bytes=size_bytes)


@given(ANY, st.integers(1, 30), st.sampled_from([-1, 0, 5, 1 << 64]))
def test_runs_are_what_the_checks_allow(
    parts: list[tuple[np.ndarray, Strided, Strided]], size_bytes: int, region_id: int
) -> None:
    region = region_of(size_bytes, region_id)
    writes = [Write(*part) for part in parts]
    reads = [Read(remote, local, here) for local, here, remote in parts]
    found = [runs_of_writes(region, writes), runs_of_reads(region, reads)]
    try:
        WriteBatch(region, writes).check()
        ReadBatch(region, reads).check()
    except TransferError:
        assert found == [None, None]
    else:
        are_runs = all(here.num_rows == remote.num_rows == 1 for _, here, remote in parts)
        assert [runs is not None for runs in found] == [bool(parts) and are_runs] * 2


@given(FITTING)
def test_runs_name_the_same_bytes_in_the_same_order(
    parts: list[tuple[np.ndarray, Strided, Strided]],
) -> None:
    """And as the owner reads them out of the frame."""
    theirs = np.arange(200, 220, dtype=np.uint8)
    runs = runs_of_writes(region_of(20), [Write(*part) for part in parts])
    assert runs is not None
    here = b"".join(local[at.offset : at.offset + at.row_bytes].tobytes() for local, at, _ in parts)
    there = b"".join(theirs[at.offset : at.offset + at.row_bytes].tobytes() for _, _, at in parts)
    assert b"".join(runs.vectors) == here
    assert runs.length == len(here)
    request = wire.decode_request(runs.request)
    assert (request.op, request.epoch, request.region_id) == (wire.Op.WRITE, 7, 0)
    found = wire.runs_in(runs.request, len(request.ranges), theirs.data)
    assert found is not None
    assert b"".join(found) == there


def test_memory_that_must_not_change_takes_no_runs() -> None:
    local = np.zeros(8, np.uint8)
    local.flags.writeable = False
    assert runs_of_reads(region_of(8), [Read.into(contiguous(0, 8), local)]) is None
    assert runs_of_writes(region_of(8), [Write.at(0, local)]) is not None


@pytest.mark.parametrize(
    "local",
    [
        np.zeros(4, np.float32),
        np.zeros((4, 4), np.uint8),
        np.zeros(32, np.uint8)[::2],
        np.zeros(16, np.int8),
        bytearray(16),
    ],
)
def test_memory_of_another_shape_is_refused_before_anything_moves(local: ByteArray) -> None:
    """Offsets would be elements, and bytes be taken for numbers."""
    region = region_of(16)
    reads = [Read(contiguous(0, 8), local, contiguous(0, 8))]
    writes = [Write(local, contiguous(0, 8), contiguous(0, 8))]
    for batch in (ReadBatch(region, reads), WriteBatch(region, writes)):
        with pytest.raises(TransferError, match="flat array of bytes"):
            batch.check()
    assert runs_of_reads(region, reads) is None
    assert runs_of_reads(region, reads * 2) is None
    assert runs_of_writes(region, writes) is None
    assert runs_of_writes(region, writes * 2) is None
