import threading
import time

import numpy as np
import pytest

from daemons.core.errors import TransferError
from daemons.transfer.memory import allocate_shared
from daemons.transfer.regions import Pinned, RegionTable


def test_a_region_in_use_is_out_of_reach_but_not_free() -> None:
    table = RegionTable()
    region = table.register(bytearray(8))
    with table.use(region.region_id):
        table.deregister(region.region_id)
        assert not table.wait_unused(region.region_id, 0.01)
        with pytest.raises(TransferError, match="not registered"), table.use(region.region_id):
            pass
    assert table.wait_unused(region.region_id, 0.0)


def test_a_pinned_region_stays_until_its_last_view_is_closed() -> None:
    table = RegionTable()
    region = table.register(bytearray(8))
    table.pin(region.region_id)
    table.pin(region.region_id)
    with pytest.raises(Pinned, match="2 views"):
        table.deregister(region.region_id)
    assert table.get(region.region_id) is region
    threading.Timer(0.05, table.unpin, (region.region_id, 2)).start()
    started_s = time.monotonic()
    table.deregister(region.region_id, timeout_s=5)
    assert time.monotonic() - started_s < 4.5


def test_memory_is_found_in_the_region_that_holds_all_of_it() -> None:
    table, memory = RegionTable(), allocate_shared("test", 4096)
    region = table.register(memory)
    assert table.containing([memory.array[5:9], memory.array[4000:]]) is region
    assert table.containing([memory.array[5:9], np.zeros(4, np.uint8)]) is None
    table.close()
    memory.close()


def test_access_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TransferError, match="'write' is not one of read, read-write"):
        RegionTable().register(bytearray(8), "write")  # type: ignore[arg-type]  # what an untyped caller may do
