"""The table of registered regions: what peers may reach, who is using it now, and who pinned it.

A region that was deregistered is out of reach when nobody uses it any more; until then its memory is not free.
"""

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

import numpy as np

from daemons.core.errors import Conflict, TransferError
from daemons.transfer.buffers import Buffer, as_memory
from daemons.transfer.device_memory import DeviceMemory, address_of
from daemons.transfer.memory import Access, Region, SharedMemory
from daemons.transfer.strided import ByteArray

_NO_BYTES: ByteArray = np.empty(0, np.uint8)


class Pinned(Conflict):
    """Somebody looks at the region through a view."""


class RegionTable:
    """Regions of one process by id. Thread safe. Ids are never used twice in one life."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._regions: dict[int, Region] = {}
        self._users: dict[int, int] = {}
        self._num_waiting = 0
        """Threads that wait for `_changed`: nobody is notified without need, as every request ends here."""
        self._pins: Counter[int] = Counter()
        self._ids = itertools.count(1)

    def register(self, memory: SharedMemory | Buffer, access: Access = "read") -> Region:
        """Name this memory; its bytes stay the caller's. Memory registered already is refused."""
        shared = memory if isinstance(memory, SharedMemory) else None
        found = shared.array if shared else as_memory(memory)  # type: ignore[arg-type]  # narrowed above
        if access not in get_args(Access):
            raise TransferError(f"access {access!r} is not one of {', '.join(get_args(Access))}")
        if not found.nbytes:
            raise TransferError("an empty region cannot be registered")
        if access == "read-write" and not found.flags.writeable:
            raise TransferError("read-only memory cannot be registered for WRITE")
        device = found if isinstance(found, DeviceMemory) else None
        array = _NO_BYTES if isinstance(found, DeviceMemory) else found
        start = address_of(found)
        with self._lock:
            for other in self._regions.values():
                if (
                    start < other.address + other.size_bytes
                    and other.address < start + found.nbytes
                ):
                    raise TransferError(
                        f"memory overlaps region {other.region_id}; register it once"
                    )
            region_id = next(self._ids)
            fd = None if shared is None else _reopen_read_only(shared.fd)
            region = Region(region_id, array, array.data, fd, access, device)
            self._regions[region_id] = region
        return region

    def deregister(self, region_id: int, timeout_s: float = 0.0) -> None:
        """From now on nobody begins to use it. Raises Pinned when a view is still open after `timeout_s`."""
        with self._changed:
            self._find(region_id)
            if not self._wait_for(lambda: not self._pins[region_id], timeout_s):
                raise Pinned(
                    f"region {region_id} is shown by {self._pins[region_id]} views; close them first"
                )
            region = self._regions.pop(region_id, None)
        if region is not None and region.fd is not None:
            os.close(region.fd)

    def wait_unused(self, region_id: int, timeout_s: float) -> bool:
        """Whether all requests that use the region ended in time."""
        with self._changed:
            return self._wait_for(lambda: region_id not in self._users, timeout_s)

    def get(self, region_id: int) -> Region:
        region = self._regions.get(region_id)
        return region if region is not None else self._find(region_id)

    def find(self, region_id: int) -> Region | None:
        """Without a hold: whoever copies from it must find the same region again afterwards."""
        return self._regions.get(region_id)

    @contextmanager
    def use(self, region_id: int) -> Iterator[Region]:
        """Hold the region's memory: `wait_unused` waits for the end of it."""
        region = self.hold(region_id)
        try:
            yield region
        finally:
            self.drop(region_id)

    def hold(self, region_id: int) -> Region:
        """`use` without its cost; `drop` must follow."""
        with self._lock:
            region = self._find(region_id)
            self._users[region_id] = self._users.get(region_id, 0) + 1
        return region

    def drop(self, region_id: int) -> None:
        with self._lock:
            left = self._users[region_id] - 1
            if left:
                self._users[region_id] = left
                return
            del self._users[region_id]
            if self._num_waiting:
                self._changed.notify_all()

    def pin(self, region_id: int) -> Region:
        with self._lock:
            region = self._find(region_id)
            self._pins[region_id] += 1
        return region

    def unpin(self, region_id: int, count: int = 1) -> None:
        with self._changed:
            self._pins[region_id] -= count
            if self._pins[region_id] <= 0:
                del self._pins[region_id]
                self._changed.notify_all()

    def containing(self, arrays: Sequence[ByteArray]) -> Region | None:
        """The region that holds all of this memory."""
        spans = [(int(array.ctypes.data), array.nbytes) for array in arrays]
        start, end = min(s for s, _ in spans), max(s + n for s, n in spans)
        with self._lock:
            for region in self._regions.values():
                if region.address <= start and end <= region.address + region.size_bytes:
                    return region
        return None

    def duplicate_fd(self, region_id: int) -> int | None:
        """A read-only descriptor for a peer, the caller closes it; None for private memory."""
        with self._lock:
            region = self._find(region_id)
            return None if region.fd is None else os.dup(region.fd)

    def close(self) -> None:
        """Drop everything, pinned or not: the process is going away."""
        with self._lock:
            regions = list(self._regions.values())
            self._regions.clear()
        for region in regions:
            if region.fd is not None:
                os.close(region.fd)

    def _wait_for(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        self._num_waiting += 1
        try:
            return self._changed.wait_for(is_so, timeout_s)
        finally:
            self._num_waiting -= 1

    def _find(self, region_id: int) -> Region:
        region = self._regions.get(region_id)
        if region is None:
            raise TransferError(f"region {region_id} is not registered")
        return region


def _reopen_read_only(fd: int) -> int:
    """Peers get a descriptor that can neither write nor truncate."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
