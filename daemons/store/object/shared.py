"""What the tier's callers, its readers and its writer all touch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from daemons.core.ids import BlockHash
from daemons.store.lower.block_record import BlockRecord
from daemons.store.lower.state import TierState
from daemons.store.object.bucket import ObjectBucket
from daemons.store.object.catalog import Catalog, Part
from daemons.store.object.delete_journal import DeleteJournal
from daemons.store.object.gate import Gate
from daemons.store.object.queue import PutQueue
from daemons.store.object.settings import ObjectCounters, ObjectSettings

OnFound = Callable[[Sequence[BlockHash]], object]
GONE = "this node has closed its object tier"


@dataclass(slots=True, kw_only=True)
class Shared(TierState):
    """`lock` guards all but settings, bucket and gate."""

    bucket: ObjectBucket
    settings: ObjectSettings
    journal: DeleteJournal | None = None
    """Of deletes that the store has not heard of."""
    counters: ObjectCounters = field(default_factory=ObjectCounters)
    catalog: Catalog = field(default_factory=Catalog)
    queue: PutQueue = field(default_factory=PutQueue)
    gate: Gate = field(default_factory=Gate)
    garbage: dict[str, int] = field(default_factory=dict)
    """Keys to be deleted, with their bytes."""
    is_open: bool = False
    """What is in the store is known."""
    unsettled: set[BlockHash] = field(default_factory=set)
    """Deleted or given up, and perhaps still named by a manifest."""
    early_deletes: set[BlockHash] = field(default_factory=set)
    """Asked for before it was open."""

    to_adopt: set[str] = field(default_factory=set)
    """Nodes that are away, whose objects this one is to read."""
    adopted: set[str] = field(default_factory=set)
    """Those whose it reads."""

    @property
    def is_unsettled(self) -> bool:
        """With the lock held: a start would find what was deleted."""
        return not self.is_open or bool(self.queue.deletes or self.garbage or self.catalog.stale)

    def is_dead(self, block: BlockRecord) -> bool:
        """An object that was deleted or replaced while the store was away, perhaps by an earlier life."""
        meta, journal = block.meta, self.journal
        return bool(meta.name) and journal is not None and journal.is_dead(meta.hash, block.version)

    def bucket_of(self, part: Part) -> ObjectBucket:
        """Without the lock."""
        return self.bucket.of(part.owner) if part.owner else self.bucket

    def discard(self, part: Part) -> None:
        """With the lock held: its objects are to go."""
        self.garbage.update(zip(part.keys, (0, part.num_bytes), strict=True))
