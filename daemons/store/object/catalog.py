"""Which block lies where in which part, and what each part holds. Guarded by the tier's lock."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from daemons.core.ids import BlockHash
from daemons.store.directory.columns import NO_ROW
from daemons.store.lower import BlockRecord
from daemons.store.object.manifest import Entry, data_key, manifest_key
from daemons.store.ssd.index import BlockIndex, Location


@dataclass(slots=True, eq=False)
class Part:
    """One object of blocks, with a manifest of `revision`. `last_revision` was tried, and may be there too."""

    part_id: int
    name: str
    num_bytes: int
    used_s: float
    revision: int = 0
    last_revision: int = 0
    owner: str = ""
    """The node whose it is, for which this one reads; empty: this one. Nothing of it is changed or counted."""
    num_live: int = 0
    live_bytes: int = 0

    @property
    def keys(self) -> list[str]:
        """In the order of removal: without its manifest the data does not exist."""
        return [manifest_key(self.name, self.revision), data_key(self.name)]


@dataclass(frozen=True, slots=True)
class Found:
    """A block and its place."""

    block: BlockRecord
    part: Part
    offset: int


@dataclass(slots=True)
class Catalog:
    """Every block is in one part."""

    index: BlockIndex = field(default_factory=BlockIndex)
    parts: dict[int, Part] = field(default_factory=dict)
    """By id, the oldest first."""
    num_bytes: int = 0
    """Of all parts."""
    stale: set[int] = field(default_factory=set)
    """Parts whose manifests name blocks that were deleted."""

    def get(self, block_hash: BlockHash) -> Found | None:
        row = self.index.find(block_hash)
        if row == NO_ROW:
            return None
        location = self.index.location(row)
        return Found(self.index.block(row), self.parts[location.bucket], location.offset)

    def has_own(self, block_hash: BlockHash) -> bool:
        row = self.index.find(block_hash)
        return row != NO_ROW and not self.parts[self.index.location(row).bucket].owner

    def add_part(self, part: Part, entries: Iterable[Entry], *, is_stale: bool = False) -> None:
        """Each of its blocks takes the place of an earlier one of that name. `is_stale`: its manifest names more."""
        self.parts[part.part_id] = part
        self.num_bytes += 0 if part.owner else part.num_bytes
        if is_stale:
            self.stale.add(part.part_id)
        for block, offset in entries:
            self.drop([block.meta.hash])
            self.index.add(block, Location(part.part_id, offset, part.part_id))
            part.num_live += 1
            part.live_bytes += block.stored_bytes

    def drop(self, hashes: Iterable[BlockHash]) -> list[BlockHash]:
        """Those that were there; their parts' manifests do not know it yet."""
        return [block_hash for block_hash in hashes if self._drop(block_hash)]

    @property
    def own(self) -> list[Part]:
        return [part for part in self.parts.values() if not part.owner]

    def remove_part(self, part: Part) -> list[BlockHash]:
        """With what still lives in it."""
        gone = [self.index.hash_of(row) for row in self.index.rows_in_bucket(part.part_id)]
        self.drop(gone)
        del self.parts[part.part_id]
        self.num_bytes -= 0 if part.owner else part.num_bytes
        self.stale.discard(part.part_id)
        return gone

    def entries(self, part: Part) -> list[Entry]:
        """Of what lives in it, in order."""
        return [
            Entry(self.index.block(row), self.index.location(row).offset)
            for row in self.index.rows_in_bucket(part.part_id)
        ]

    def hashes(self) -> list[BlockHash]:
        return [self.index.hash_of(row) for row in self.index.rows()]

    def check_invariants(self) -> None:
        """For tests. O(n * parts)."""
        self.index.check_invariants()
        for part in self.parts.values():
            live = self.entries(part)
            assert part.num_live == len(live)
            assert part.live_bytes == sum(entry.block.stored_bytes for entry in live)
            assert all(e.offset + e.block.stored_bytes <= part.num_bytes for e in live)
        assert self.stale <= self.parts.keys()
        assert self.num_bytes == sum(part.num_bytes for part in self.own)
        assert sum(part.num_live for part in self.parts.values()) == len(self.index)

    def _drop(self, block_hash: BlockHash) -> bool:
        row = self.index.find(block_hash)
        if row == NO_ROW:
            return False
        part = self.parts[self.index.location(row).bucket]
        part.num_live -= 1
        part.live_bytes -= self.index.block(row).stored_bytes
        if not part.owner:
            self.stale.add(part.part_id)
        self.index.remove(row)
        return True
