"""The short way of a WRITE takes only what the long way's checks would let pass, and then exactly those bytes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daemons.core.errors import TransferError
from daemons.core.ids import Epoch, HostId
from daemons.protocol.segment import DataAddress, RegionRef, Strided
from daemons.transfer.transports.base import Write, WriteBatch

ADDRESS = DataAddress(host_id=HostId("h"), unix_path="", tcp="127.0.0.1:1", epoch=Epoch(7))
LOCAL = np.arange(20, dtype=np.uint8)
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


@given(RANGES, RANGES, st.integers(1, 30), st.sampled_from([-1, 0, 5, 1 << 64]))
def test_one_run_is_what_the_checks_allow(
    source: Strided, remote: Strided, size_bytes: int, region_id: int
) -> None:
    region = RegionRef(address=ADDRESS, region_id=region_id, size_bytes=size_bytes)
    write = Write(LOCAL, source, remote)
    found = write.one_run(region)
    try:
        WriteBatch(region, [write]).check()
    except TransferError:
        assert found is None
    else:
        is_one = source.num_rows == remote.num_rows == 1
        assert (found is not None) == is_one
    if found is not None:
        assert found.tobytes() == LOCAL[source.offset : source.offset + remote.row_bytes].tobytes()
