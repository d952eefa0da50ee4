"""Memory of a GPU and the devices: by dma-buf where that is to be had, by its address for nvidia-peermem elsewhere."""

import ctypes
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kit import cuda as kit_cuda
from kit.cuda import CudaTensor

from daemons.transfer.buffers import as_memory
from daemons.transfer.device_memory import address_of
from daemons.transfer.regions import RegionTable
from daemons.transfer.transports.rdma import registration
from daemons.transfer.transports.rdma.registration import RegistrationTable, register

PAGE = 4096


class Refused(Exception):
    """As pyverbs says that a device does not take it."""


class Verbs(SimpleNamespace):
    """Just what is registered, and how."""

    PyverbsError = Refused
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ = 1, 2, 4

    def __init__(self) -> None:
        super().__init__(made=[], refuses=False)
        self.MR = self._by_address
        self.DmaBufMR: Any = self._by_dma_buf

    def _by_address(self, domain: str, length: int, access: int, *, address: int) -> Any:
        return self._make(domain, "address", address, length, access)

    def _by_dma_buf(self, domain: str, length: int, access: int, fd: int, *, offset: int) -> Any:
        os.fstat(fd)  # it is open
        return self._make(domain, "dma-buf", offset, length, access)

    def _make(self, domain: str, *what: object) -> Any:
        if self.refuses:
            raise Refused("Bad address")
        self.made.append(what)
        return SimpleNamespace(lkey=len(self.made), rkey=len(self.made) + 100, close=lambda: None)


DEVICES: Any = [SimpleNamespace(name="mlx5_0", domain="pd0"), None]


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> Verbs:
    verbs = Verbs()
    monkeypatch.setattr(registration, "load", lambda: verbs)
    return verbs


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    with kit_cuda.driver() as library:
        yield library


def tensor_at(library: ctypes.CDLL, offset: int, size_bytes: int) -> CudaTensor:
    """Some way into a page, as torch's allocator gives it."""
    library.test_allocate(PAGE + offset)
    return CudaTensor(library, np.zeros(size_bytes, np.uint8))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # without the objects, which would be counted


def test_a_dma_buf_is_registered_and_its_places_are_what_devices_are_told(
    verbs: Verbs, library: ctypes.CDLL
) -> None:
    memory = as_memory(tensor_at(library, 512, 3 * PAGE))
    before = open_descriptors()
    found = register(DEVICES, memory, access=5, chunk_bytes=2 * PAGE)
    assert open_descriptors() == before
    assert verbs.made == [
        ("dma-buf", 512, 2 * PAGE, 5),
        ("dma-buf", 512 + 2 * PAGE, PAGE, 5),
    ]
    assert (found.address, found.local_keys, found.why_not) == (512, [[1, 2], []], "")
    assert found.address_of(memory) == 512


def test_local_memory_is_found_by_where_the_gpu_has_it(verbs: Verbs, library: ctypes.CDLL) -> None:
    tensor = tensor_at(library, 1024, PAGE)
    table, regions = RegistrationTable(DEVICES), RegionTable()
    region = regions.register(tensor, "read-write")
    table.add(region)
    with table.use(as_memory(tensor), {0}, is_target=True) as found:
        assert found is table.get(region.region_id)
        assert found.num_users == 1
    assert len(verbs.made) == 1, "nothing is registered a second time"
    table.close()


def test_without_dma_buf_the_address_is_what_peermem_takes(
    verbs: Verbs, library: ctypes.CDLL
) -> None:
    verbs.DmaBufMR = None
    memory = as_memory(tensor_at(library, 512, PAGE))
    found = register(DEVICES, memory, access=1)
    assert verbs.made == [("address", address_of(memory), PAGE, 1)]
    assert found.address == address_of(memory)


def test_where_both_fail_the_reason_names_both(verbs: Verbs, library: ctypes.CDLL) -> None:
    verbs.DmaBufMR, verbs.refuses = None, True
    found = register(DEVICES, as_memory(tensor_at(library, 0, PAGE)), access=1)
    assert not found.has_keys(0)
    for word in ("mlx5_0", "Bad address", "dma-buf", "nvidia-peermem"):
        assert word in found.why_not, found.why_not


def test_host_memory_goes_by_its_address(verbs: Verbs) -> None:
    array = np.zeros(PAGE, np.uint8)
    found = register(DEVICES, array, access=1)
    assert verbs.made == [("address", address_of(array), PAGE, 1)]
    assert found.address_of(array[100:]) == address_of(array) + 100
