"""The simulated pool below DRAM: an SSD in each prefill node, and one object store for all.

What leaves DRAM is written to its node's SSD, and what leaves that to the object store, as far as the devices keep up:
beyond MAX_BACKLOG_S of writes it is lost instead. What goes first is chosen by the live directory in each tier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from daemons.core.ids import BlockHash, HostId, NodeId
from daemons.protocol.block import SealedBlock, Tier
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.segment import RegionRef
from daemons.simulation.hardware import StorageRates
from daemons.store.directory.directory import Directory
from daemons.store.directory.slot_table import Place

OBJECT_STORE: Final = NodeId("object-store")
MAX_BACKLOG_S: Final = 5.0
EVICT_FRACTION: Final = 0.02


class Device:
    """Reads follow each other, and so do writes; the two do not disturb each other."""

    def __init__(self, rates: StorageRates) -> None:
        self._rates = rates
        self._read_free_s = self._write_free_s = 0.0
        self.read_bytes = self.written_bytes = 0

    def read_end_s(self, num_bytes: int, *, now_s: float) -> float:
        """When the last byte would be there, were it asked for now."""
        start_s = max(now_s, self._read_free_s)
        return start_s + self._rates.latency_s + num_bytes / self._rates.read

    def read(self, num_bytes: int, *, now_s: float) -> float:
        """When the last byte is there."""
        self._read_free_s = self.read_end_s(num_bytes, now_s=now_s)
        self.read_bytes += num_bytes
        return self._read_free_s

    def write(self, num_bytes: int, *, now_s: float) -> bool:
        """False when too much is waiting to be written."""
        start_s = max(now_s, self._write_free_s)
        if start_s - now_s > MAX_BACKLOG_S:
            return False
        self._write_free_s = start_s + num_bytes / self._rates.write
        self.written_bytes += num_bytes
        return True


@dataclass(frozen=True, slots=True)
class LowerSizes:
    """In blocks: of each node's SSD, and of the object store; 0: there is none."""

    ssd_blocks: int = 0
    object_blocks: int = 0
    block_bytes: int = 0


class LowerTiers:
    """Holds what the directory says; only numbers of blocks are kept here."""

    def __init__(
        self,
        directory: Directory,
        nodes: Sequence[NodeId],
        sizes: LowerSizes,
        device_of: Callable[[Tier], Device],
    ) -> None:
        self._directory = directory
        self._sizes = sizes
        self._capacity: dict[Tier, int] = {"ssd": sizes.ssd_blocks, "object": sizes.object_blocks}
        self.num_lost = 0
        """Blocks that a device was too slow for, or that left the last tier."""
        self.devices: dict[Place, Device] = {}
        if sizes.ssd_blocks:
            for node in nodes:
                self._add((node, "ssd"), device_of)
        if sizes.object_blocks:
            region = _region_of(directory, nodes[0])
            directory.add_node(OBJECT_STORE, HostId(OBJECT_STORE), region)
            self._add((OBJECT_STORE, "object"), device_of)

    def demote(self, node: NodeId, leaving: Sequence[SealedBlock], *, now_s: float) -> None:
        """These are about to leave the node's DRAM."""
        if (node, "ssd") in self.devices:
            self._write((node, "ssd"), leaving, now_s)
        elif (OBJECT_STORE, "object") in self.devices:
            self._write((OBJECT_STORE, "object"), leaving, now_s)

    def _add(self, place: Place, device_of: Callable[[Tier], Device]) -> None:
        self._directory.add_tier(*place)
        self.devices[place] = device_of(place[1])

    def _write(self, place: Place, blocks: Sequence[SealedBlock], now_s: float) -> None:
        """What is there already costs nothing."""
        directory, (node, tier) = self._directory, place
        new = [block for block in blocks if not directory.length_on(place, block.meta.hash)]
        num_bytes = len(new) * self._sizes.block_bytes
        if not new:
            return
        if not self.devices[place].write(num_bytes, now_s=now_s):
            self.num_lost += len(new)
            return
        self._make_room(place, len(new), now_s)
        room = self._capacity[tier] - directory.num_blocks_on(node, tier)
        fitting = SealedBlocks.pack(new[: max(0, room)])
        directory.record_sealed(node, fitting, now_s=now_s, tier=tier)

    def _make_room(self, place: Place, num_blocks: int, now_s: float) -> None:
        directory, (node, tier) = self._directory, place
        excess = directory.num_blocks_on(node, tier) + num_blocks - self._capacity[tier]
        if excess <= 0:
            return
        wanted = excess + int(EVICT_FRACTION * self._capacity[tier])
        victims = directory.victims(node, wanted, now_s=now_s, max_blocks=wanted, tier=tier)
        if tier == "ssd" and (OBJECT_STORE, "object") in self.devices:
            self._write((OBJECT_STORE, "object"), sealed_of(directory, victims), now_s)
        else:
            self.num_lost += len(victims)
        directory.record_freed(node, victims, tier=tier)


def sealed_of(directory: Directory, hashes: Sequence[BlockHash]) -> list[SealedBlock]:
    """Records of blocks that the directory has; each counts as one byte, for only their number matters."""
    rows = (directory.blocks.row_by_hash[block_hash] for block_hash in hashes)
    return [
        SealedBlock(
            meta=directory.blocks.meta_of(row),
            offset=0,
            length=1,
            trailer_bytes=0,
            version=1,
            seal_checksum=0,
            num_layers=1,
        )
        for row in rows
    ]


def _region_of(directory: Directory, node: NodeId) -> RegionRef:
    return directory.slots[directory.slots.by_place[node, "dram"]].region
