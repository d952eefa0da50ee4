"""Memory registered with the devices: what peers may read, and what READs may land in.

One registration per region and device, in chunks, because pyverbs holds the GIL while it pins pages. A region that
transfers of this process use is not given up under them.
"""

import bisect
import contextlib
import os
import threading
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from daemons.core.errors import TransferError, Unavailable
from daemons.core.units import GIB
from daemons.transfer.device_memory import DeviceMemory, LocalMemory, address_of
from daemons.transfer.memory import Region
from daemons.transfer.transports.rdma.device import Device
from daemons.transfer.transports.rdma.verbs import load

CHUNK_BYTES = GIB
"""Pinning this much takes some 20-100 ms of prefaulted pages on hardware: a pause other threads survive."""


@dataclass(slots=True, eq=False)
class Registration:
    """Keys of one range of memory. `mrs[i]` are device i's, one per chunk; none where that device refused."""

    memory: LocalMemory
    address: int
    """Of its first byte, as devices are told. Not where the CPU or the GPU sees it when it came as a dma-buf."""
    chunk_bytes: int
    mrs: list[list[Any]]
    why_not: str = ""
    is_writable: bool = False
    """For peers."""
    num_users: int = 0
    is_going: bool = False
    local_keys: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.local_keys = [[int(mr.lkey) for mr in device_mrs] for device_mrs in self.mrs]

    @property
    def size_bytes(self) -> int:
        return self.memory.nbytes

    def address_of(self, part: LocalMemory) -> int:
        """What devices are told for memory inside of it."""
        return self.address + address_of(part) - address_of(self.memory)

    def remote_keys(self) -> list[list[int]]:
        return [[int(mr.rkey) for mr in device_mrs] for device_mrs in self.mrs]

    def has_keys(self, device_index: int) -> bool:
        return bool(self.mrs[device_index])

    def close(self) -> None:
        """Closed exactly once each: pyverbs would not forgive a second time."""
        for device_mrs in self.mrs:
            while device_mrs:
                device_mrs.pop().close()


def register(
    devices: Sequence[Device | None],
    memory: LocalMemory,
    *,
    access: int,
    chunk_bytes: int = CHUNK_BYTES,
) -> Registration:
    """Register with every device; what a device refuses is left without keys, with the reason in `why_not`.

    None stands for a device that is left out.
    """
    verbs = load()
    all_mrs: list[list[Any]] = []
    why_not = ""
    with _opened(memory) as door:
        for device in devices:
            mrs: list[Any] = []
            all_mrs.append(mrs)
            if device is None:
                continue
            try:
                for start in range(0, memory.nbytes, chunk_bytes):
                    length = min(chunk_bytes, memory.nbytes - start)
                    mrs.append(door.register(device, start, length, access))
            except verbs.PyverbsError as error:
                why_not = f"{device.name} cannot register {memory.nbytes} bytes: {error} {door.hint}".strip()
                while mrs:
                    mrs.pop().close()
        return Registration(memory, door.address, chunk_bytes, all_mrs, why_not)


@dataclass(frozen=True, slots=True)
class _Door:
    """How devices come to some memory: by its address, or by a dma-buf where it is a GPU's."""

    address: int
    dma_buf: int | None = None
    hint: str = ""

    def register(self, device: Device, start: int, length: int, access: int) -> Any:
        verbs = load()
        at = self.address + start
        if self.dma_buf is None:
            return verbs.MR(device.domain, length, access, address=at)
        return verbs.DmaBufMR(device.domain, length, access, self.dma_buf, offset=at)


@contextlib.contextmanager
def _opened(memory: LocalMemory) -> Iterator[_Door]:
    if not isinstance(memory, DeviceMemory):
        yield _Door(address_of(memory))
        return
    memory.driver.order_copies(memory.device, memory.address)
    try:
        dma_buf, offset = _export(memory)
    except TransferError as error:
        # By its address, as host memory: the kernel asks nvidia-peermem, where that is loaded.
        door = _Door(
            memory.address, hint=f"(no dma-buf: {error.message}; is nvidia-peermem loaded?)"
        )
        yield door
        return
    try:
        yield _Door(offset, dma_buf)
    finally:
        os.close(dma_buf)  # what was registered holds the memory by itself


def _export(memory: DeviceMemory) -> tuple[int, int]:
    if load().DmaBufMR is None:
        raise TransferError("this pyverbs knows none")
    return memory.driver.export_dma_buf(memory.device, memory.address, memory.nbytes)


class RegistrationTable:
    """Registered regions by id and by address. Thread safe."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices
        self._condition = threading.Condition()
        self._by_id: dict[int, Registration] = {}
        self._starts: list[int] = []
        self._by_start: list[Registration] = []

    def add(self, region: Region) -> Registration:
        """Peers may READ it, and WRITE it where its access says so. Slow: pins every page."""
        verbs = load()
        access = verbs.IBV_ACCESS_REMOTE_READ
        if region.memory.flags.writeable:
            access |= verbs.IBV_ACCESS_LOCAL_WRITE
        is_writable = region.access == "read-write"
        if is_writable:
            access |= verbs.IBV_ACCESS_REMOTE_WRITE
        registration = register(self._devices, region.memory, access=access)
        registration.is_writable = is_writable
        with self._condition:
            self._by_id[region.region_id] = registration
            position = bisect.bisect(self._starts, region.address)
            self._starts.insert(position, region.address)
            self._by_start.insert(position, registration)
        return registration

    def get(self, region_id: int) -> Registration:
        registration = self._by_id.get(region_id)
        if registration is None or registration.is_going:
            raise TransferError(f"region {region_id} is not registered")
        return registration

    @contextlib.contextmanager
    def use(
        self, memory: LocalMemory, device_indexes: Container[int], *, is_target: bool
    ) -> Iterator[Registration]:
        """The registration that holds this local memory, kept while it is used; a passing one where none does.

        A passing registration ends with the transfer: kept longer, it could outlive the memory, and the device
        would go on writing to pages that are somebody else's by then.
        """
        registration = self._acquire(memory, is_target=is_target)
        if registration is None:
            access = load().IBV_ACCESS_LOCAL_WRITE if is_target else 0
            devices = [
                device if index in device_indexes else None
                for index, device in enumerate(self._devices)
            ]
            registration = register(devices, memory, access=access)
            try:
                yield registration
            finally:
                registration.close()
            return
        try:
            yield registration
        finally:
            with self._condition:
                registration.num_users -= 1
                self._condition.notify_all()

    def stop_use(self, region_id: int, timeout_s: float) -> None:
        """No new user; wait for those there are. On `Unavailable` the region stays registered and usable."""
        deadline_s = time.monotonic() + timeout_s
        with self._condition:
            registration = self._by_id.get(region_id)
            if registration is None:
                return
            registration.is_going = True
            while registration.num_users:
                if not self._condition.wait(max(deadline_s - time.monotonic(), 0)):
                    registration.is_going = False
                    raise Unavailable(
                        f"region {region_id} is still the target of {registration.num_users} transfers "
                        f"after {timeout_s:g} s; cancel them first"
                    )

    def remove(self, region_id: int) -> None:
        """After `stop_use`. When it returns, the devices refuse all access to the region."""
        with self._condition:
            registration = self._by_id.pop(region_id, None)
            if registration is None:
                return
            position = self._by_start.index(registration)
            del self._starts[position], self._by_start[position]
        registration.close()

    def close(self) -> None:
        for region_id in list(self._by_id):
            self.remove(region_id)

    def _acquire(self, memory: LocalMemory, *, is_target: bool) -> Registration | None:
        address = address_of(memory)
        with self._condition:
            position = bisect.bisect(self._starts, address) - 1
            if position < 0:
                return None
            registration = self._by_start[position]
            end = self._starts[position] + registration.size_bytes
            is_usable = registration.memory.flags.writeable or not is_target
            if address + memory.nbytes > end or not is_usable:
                return None
            if registration.is_going:
                raise TransferError("the local memory is being deregistered")
            registration.num_users += 1
            return registration
