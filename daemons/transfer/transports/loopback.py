"""READ between engines of one process: its own regions, and those of fakes in tests that share a directory."""

from typing import ClassVar

from daemons.core.errors import TransferError
from daemons.protocol.segment import DataAddress
from daemons.transfer.memory import RegionTable
from daemons.transfer.strided import copy
from daemons.transfer.transports.base import ReadBatch

TablesByEpoch = dict[int, RegionTable]


class LoopbackTransport:
    """`tables` holds the regions of every engine it reaches, by epoch."""

    scheme: ClassVar[str] = "loopback"

    def __init__(self, tables: TablesByEpoch) -> None:
        self._tables = tables

    def reaches(self, address: DataAddress) -> bool:
        return address.epoch in self._tables

    def read(self, batch: ReadBatch) -> None:
        table = self._tables[batch.region.address.epoch]
        region = table.get(batch.region.region_id)
        if batch.region.size_bytes > region.size_bytes:
            raise TransferError(f"region {region.region_id} has {region.size_bytes} bytes")
        guard = batch.generation
        if guard is not None:
            batch.check_generation(table.get(guard.region_id).word(guard.index))
        for index, read in enumerate(batch.reads):
            batch.remaining_s()
            copy(region.array, read.remote, read.local, read.target)
            batch.finish(index)
        if guard is not None:
            batch.check_generation(table.get(guard.region_id).word(guard.index))

    def close(self) -> None:
        """Nothing is held open."""
