"""Engines of one process: its own regions, and those of fakes in tests that share a directory."""

from typing import ClassVar

from daemons.core.errors import Exhausted, TransferError
from daemons.protocol.segment import DataAddress
from daemons.transfer.device_memory import on_host
from daemons.transfer.memory import Region
from daemons.transfer.notifications import Notification, Notifications
from daemons.transfer.regions import RegionTable
from daemons.transfer.staging import read_device, write_device
from daemons.transfer.strided import copy
from daemons.transfer.transports.base import ReadBatch, WriteBatch

TablesByEpoch = dict[int, RegionTable]


class LoopbackTransport:
    """`tables` holds the regions of every engine it reaches, by epoch."""

    scheme: ClassVar[str] = "loopback"

    def __init__(
        self, tables: TablesByEpoch, notifications: dict[int, Notifications] | None = None
    ) -> None:
        self._tables = tables
        self._notifications = notifications or {}

    def reaches(self, address: DataAddress) -> bool:
        return address.epoch in self._tables

    def read(self, batch: ReadBatch) -> None:
        table = self._tables[batch.region.address.epoch]
        with table.use(batch.region.region_id) as region:
            _check_size(batch, region)
            guard = batch.generation
            if guard is not None:
                batch.check_generation(table.get(guard.region_id).word(guard.index))
            for index, read in enumerate(batch.reads):
                batch.remaining_s()
                local = on_host(read.local)
                if region.device is None:
                    copy(region.array, read.remote, local, read.target)
                else:
                    read_device(region.device, read.remote, local, read.target)
                batch.finish(index)
            if guard is not None:
                batch.check_generation(table.get(guard.region_id).word(guard.index))

    def write(self, batch: WriteBatch) -> None:
        table = self._tables[batch.region.address.epoch]
        with table.use(batch.region.region_id) as region:
            _check_size(batch, region)
            if region.access != "read-write":
                raise TransferError(f"region {region.region_id} is registered for READ only")
            for index, (local, source, remote) in enumerate(batch.writes):
                batch.remaining_s()
                if region.device is None:
                    copy(on_host(local), source, region.array, remote)
                else:
                    write_device(region.device, remote, on_host(local), source)
                batch.finish(index)

    def notify(self, batch: ReadBatch | WriteBatch, message: bytes) -> None:
        queue = self._notifications.get(batch.region.address.epoch)
        if queue is None or not queue.put(Notification(batch.region.region_id, message)):
            raise Exhausted("the owner's queue of notifications is full")

    def close(self) -> None:
        """Nothing is held open."""


def _check_size(batch: ReadBatch | WriteBatch, region: Region) -> None:
    if batch.region.size_bytes > region.size_bytes:
        raise TransferError(f"region {region.region_id} has {region.size_bytes} bytes")
