"""Several chains that are looked up at once: operations on columns cost nearly as much for one as for all of them.

Only where every block has one replica, and that can be read, as mostly; else they are looked up one by one.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from daemons.core.ids import BlockHash
from daemons.protocol.packed import LOCATION_BYTES, BlockLocations
from daemons.store.directory.columns import NO_ROW, Rows
from daemons.store.directory.lookups import Lookups, Taken
from daemons.store.directory.tables import Tables


class LookupsTogether:
    """Of one directory, over its `Lookups`."""

    def __init__(self, tables: Tables, lookups: Lookups) -> None:
        self._tables = tables
        self._lookups = lookups

    def match(self, asked: Sequence[Sequence[BlockHash]], *, now_s: float) -> list[Taken] | None:
        """What `Lookups.match` finds of each, not leased; None where that has to be asked."""
        if self._tables.heat is not None or not self._lookups.are_heads_best(now_s):
            return None
        parts = self._known(asked)
        replicas = self._lookups.heads(np.concatenate(parts))
        records = self._tables.replicas.records.values[replicas].tobytes()
        places = self._lookups.places(replicas)
        found, start = [], 0
        for rows in parts:
            end = start + len(rows)
            own = replicas[start:end]
            locations = BlockLocations(
                rows=records[start * LOCATION_BYTES : end * LOCATION_BYTES],
                places=places if len(places) == 1 else self._lookups.places(own),
            )
            found.append(Taken(rows, own, locations))
            start = end
        return found

    def lease(
        self, taken: Sequence[Taken], num_asked: int, *, now_s: float, lease_s: float
    ) -> Rows:
        """As `Lookups.lease`, of what `match` found just now; all its rows."""
        tables = self._tables
        rows = np.concatenate([each.rows for each in taken])
        tables.leases.touch(rows, now_s=now_s, lease_s=lease_s)
        for each in taken:
            if len(each.rows):
                tables.touch_parents(each.rows.item(0), now_s, now_s + lease_s)
        self._lookups.count(num_asked, len(rows), len(taken))
        return rows

    def _known(self, asked: Sequence[Sequence[BlockHash]]) -> list[Rows]:
        """Rows of the longest prefix of each that is recorded."""
        rows = self._tables.blocks.find_all(list(chain.from_iterable(asked)))
        is_gap = rows == NO_ROW
        has_gaps = np.count_nonzero(is_gap) > 0
        parts, start = [], 0
        for hashes in asked:
            end = following = start + len(hashes)
            if has_gaps and np.count_nonzero(is_gap[start:end]):
                end = start + int(is_gap[start:end].argmax())
            parts.append(rows[start:end])
            start = following
        return parts
