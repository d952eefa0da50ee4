"""Where blocks can be read from: prefixes, single blocks, presence. A whole message is a few operations on columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from daemons.core.ids import BlockHash, HostId
from daemons.protocol.block import BlockLocation
from daemons.protocol.packed import BlockLocations, BlockPlace
from daemons.store.directory.columns import NO_ROW, Rows
from daemons.store.directory.slot_table import NO_HOST, TIERS, UNREADABLE, Place
from daemons.store.directory.tables import Tables

_FEW: Final = 8
"""Blocks with lists so long are looked at one by one: operations on columns cost more."""


@dataclass(slots=True)
class LookupCounts:
    """Since the start of the master."""

    num_lookups: int = 0
    num_lookup_blocks: int = 0
    num_hit_blocks: int = 0


class Taken(NamedTuple):
    """Blocks of a prefix, by row, and the replica of each that was chosen."""

    rows: Rows
    replicas: Rows
    locations: BlockLocations


@dataclass(frozen=True, slots=True)
class Located:
    """All replicas of some blocks, one block's after the other's; `counts`: how many each block has; `rows`: of those
    that have any.
    """

    locations: BlockLocations
    counts: list[int]
    rows: Rows

    def unpack(self) -> list[list[BlockLocation]]:
        """The replicas of each block."""
        return self.locations.unpack_groups(self.counts)


class Lookups:
    """Of one directory."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.counts = LookupCounts()
        self._turn = 0
        """Counts look-ups that lease."""

    def find_prefix(self, hashes: Sequence[BlockHash], *, now_s: float) -> Rows:
        """Rows of the longest prefix of the chain that can be read; only looks."""
        if self._tables.replicas.is_all_readable(now_s=now_s):
            return self._known(hashes)
        rows, _ = self._readable(hashes, now_s, None)
        return rows

    def match(
        self,
        hashes: Sequence[BlockHash],
        *,
        now_s: float,
        lease_s: float,
        near: HostId | None = None,
    ) -> Taken:
        """The best replica of each block of the longest prefix that is here; leased unless `lease_s` is 0."""
        rows, replicas = self._readable(hashes, now_s, near)
        return self._take(rows, replicas, len(hashes), now_s=now_s, lease_s=lease_s)

    def take(
        self,
        rows: Rows,
        num_asked: int,
        *,
        now_s: float,
        lease_s: float,
        near: HostId | None = None,
    ) -> Taken:
        """The same of rows that `find_prefix` found just now, replicas on the host `near` first."""
        replicas = self._best(rows, now_s, near)
        return self._take(rows, replicas, num_asked, now_s=now_s, lease_s=lease_s)

    def lease(self, rows: Rows, num_asked: int, *, now_s: float, lease_s: float) -> None:
        """A prefix that was looked up just now is read from now on."""
        tables = self._tables
        tables.leases.touch(rows, now_s=now_s, lease_s=lease_s)
        if tables.heat is not None:
            tables.heat.touch(rows.tolist(), now_s=now_s)
        if len(rows):  # a chain that was asked for from its middle
            tables.touch_parents(int(rows[0]), now_s, now_s + lease_s)
        self.count(num_asked, len(rows))
        self._turn += 1

    def best_places(self, rows: Rows, *, now_s: float) -> list[Place]:
        """Where each of these rows would be read from, by whoever is near none of them; only looks."""
        slots = self._tables.replicas.slot.values[self._best(rows, now_s, None)]
        return [self._tables.slots[number].place for number in slots.tolist()]

    def locate(self, hashes: Sequence[BlockHash], *, now_s: float, lease_s: float) -> Located:
        """Every replica of each block, the ones to prefer first."""
        tables = self._tables
        rows = tables.blocks.find_all(hashes)
        found, counts = self._all_live(rows, now_s)
        hits = rows[counts > 0]
        if lease_s > 0:
            tables.use(hits, now_s=now_s, lease_s=lease_s)
            self.count(len(hashes), len(hits))
        return Located(self._locations(found), counts.tolist(), hits)

    def leading_by_host(self, rows: Rows, *, now_s: float) -> dict[HostId, int]:
        """How many of the first blocks of a prefix each host holds; `rows` are as `find_prefix` found them just now."""
        if not len(rows):
            return {}
        tables, replicas = self._tables, self._tables.replicas
        heads = tables.blocks.head.values[rows].astype(np.intp)
        # Who does not hold the first block holds none of them.
        first = self._hosts_of(heads.item(0), now_s)
        if not first:
            return {}
        asked = np.array(first)[:, np.newaxis]
        at, level = np.arange(len(rows)), heads
        holds = np.zeros((len(first), len(rows)), np.bool_)
        while len(at) > _FEW:
            hosts = tables.slots.host[replicas.slot.values[level]]
            if now_s < replicas.last_named_until_s:
                hosts = np.where(replicas.named_until_s.values[level] <= now_s, hosts, NO_HOST)
            holds[:, at] |= hosts == asked
            level = replicas.next.values[level].astype(np.intp)
            is_longer = level != NO_ROW
            at, level = at[is_longer], level[is_longer]
        row_of = {host: number for number, host in enumerate(first)}
        slot_of, following = replicas.slot.values, replicas.next.values
        named_until_s, host_of = replicas.named_until_s.values, tables.slots.host
        for index, replica in zip(at.tolist(), level.tolist(), strict=True):
            while replica != NO_ROW:
                holder = row_of.get(host_of.item(slot_of.item(replica)))
                if holder is not None and named_until_s.item(replica) <= now_s:
                    holds[holder, index] = True
                replica = following.item(replica)
        num_leading = np.where(holds.all(axis=1), len(rows), holds.argmin(axis=1)).tolist()
        return {
            tables.slots.host_ids[host]: count
            for host, count in zip(first, num_leading, strict=True)
        }

    def presence(self, rows: Sequence[int], *, now_s: float) -> bytearray:
        """For each row, NO_ROW among them: 0 absent, 1 readable, 2 only on nodes that are suspect or gone."""
        tables = self._tables
        if tables.replicas.is_all_readable(now_s=now_s):
            return bytearray(map(NO_ROW.__ne__, rows))
        wanted = np.array(rows, np.intp)
        at = np.flatnonzero(wanted >= 0)
        if not len(at):
            return bytearray(len(rows))
        heads = tables.blocks.head.values[wanted[at]]
        # Whatever is neither suspect nor named; the others are looked at one by one.
        is_good = tables.slots.rank[tables.replicas.slot.values[heads]] > 0
        is_good &= tables.replicas.named_until_s.values[heads] <= now_s
        states = np.zeros(len(rows), np.uint8)
        states[at] = is_good
        found = bytearray(states.tobytes())
        for index in at[~is_good].tolist():
            found[index] = self._presence(rows[index], now_s)
        return found

    # -- also for what is looked up together ---------------------------------------------------------------------

    def heads(self, rows: Rows) -> Rows:
        """The first replica of each."""
        return self._tables.blocks.head.values[rows].astype(np.intp)

    def are_heads_best(self, now_s: float) -> bool:
        """Every block has one replica, and that can be read."""
        tables = self._tables
        return not tables.has_spares and tables.replicas.is_all_readable(now_s=now_s)

    def places(self, replicas: Rows) -> dict[int, BlockPlace]:
        """All that these are in, by number."""
        slots = self._tables.slots
        numbers = set(self._tables.replicas.slot.values[replicas].tolist())
        return {number: slots.described(number) for number in numbers}

    def count(self, num_asked: int, num_hits: int, num_lookups: int = 1) -> None:
        """Only what leases is counted."""
        self.counts.num_lookups += num_lookups
        self.counts.num_lookup_blocks += num_asked
        self.counts.num_hit_blocks += num_hits

    # -- inside --------------------------------------------------------------------------------------------------

    def _readable(
        self, hashes: Sequence[BlockHash], now_s: float, near: HostId | None
    ) -> tuple[Rows, Rows]:
        """Rows of the longest prefix, and the best replica of each."""
        rows = self._known(hashes)
        if self.are_heads_best(now_s):
            return rows, self.heads(rows)
        replicas = self._best(rows, now_s, near)
        gaps = replicas == NO_ROW
        if np.count_nonzero(gaps):
            end = int(np.argmax(gaps))
            return rows[:end], replicas[:end]
        return rows, replicas

    def _known(self, hashes: Sequence[BlockHash]) -> Rows:
        """Rows of the longest prefix that is recorded at all."""
        blocks = self._tables.blocks
        if hashes and hashes[-1] in blocks.row_by_hash:
            rows = blocks.find_all(hashes)  # mostly all are: faster than to look for the end
            if rows.min() != NO_ROW:
                return rows
        found = map(blocks.row_by_hash.get, hashes)
        return np.fromiter(iter(found.__next__, None), np.intp)

    def _hosts_of(self, head: int, now_s: float) -> list[int]:
        """Numbers of the hosts that hold replicas of this list, each once."""
        replicas, host_of = self._tables.replicas, self._tables.slots.host
        slot_of, named_until_s = replicas.slot.values, replicas.named_until_s.values
        there = (each for each in replicas.chain(head) if named_until_s.item(each) <= now_s)
        hosts = dict.fromkeys(host_of.item(slot_of.item(each)) for each in there)
        hosts.pop(NO_HOST, None)
        return list(hosts)

    def _best(self, rows: Rows, now_s: float, near: HostId | None) -> Rows:
        tables = self._tables
        heads = self.heads(rows)
        if self.are_heads_best(now_s):
            return heads
        return tables.replicas.best(heads, now_s, near, self._turn)

    def _take(
        self, rows: Rows, replicas: Rows, num_asked: int, *, now_s: float, lease_s: float
    ) -> Taken:
        if lease_s > 0:
            self.lease(rows, num_asked, now_s=now_s, lease_s=lease_s)
        return Taken(rows, replicas, self._locations(replicas))

    def _locations(self, replicas: Rows) -> BlockLocations:
        rows = self._tables.replicas.records.values[replicas].tobytes()
        return BlockLocations(rows=rows, places=self.places(replicas))

    def _all_live(self, rows: Rows, now_s: float) -> tuple[Rows, Rows]:
        """The replicas that can be read, and how many of them each of these blocks has; NO_ROW has none."""
        table = self._tables.replicas
        if not np.count_nonzero(rows == NO_ROW):
            heads = self._tables.blocks.head.values[rows].astype(np.intp)
            if self.are_heads_best(now_s):
                return heads, np.ones(len(heads), np.intp)
            if not np.count_nonzero(table.next.values[heads] != NO_ROW):
                is_read = table.ranks(heads, now_s) > UNREADABLE
                return heads[is_read], is_read.astype(np.intp)
        live = [[] if row == NO_ROW else self._live(row, now_s) for row in rows.tolist()]
        counts = np.array([len(each) for each in live], np.intp)
        return np.array(list(chain.from_iterable(live)), np.intp), counts

    def _live(self, row: int, now_s: float) -> list[int]:
        """Those that can be read, the ones to prefer first."""
        replicas = self._tables.chain(row)
        ranks = self._tables.replicas.ranks(np.array(replicas, np.intp), now_s).tolist()
        live = [each for each, rank in zip(replicas, ranks, strict=True) if rank > UNREADABLE]
        live.sort(key=self._preference)
        return live

    def _preference(self, replica: int) -> tuple[bool, bool, int]:
        """Lowest first. `named_until_s` is 0 where it never was a victim."""
        slot = self._tables.slot_of(replica)
        is_leaving = self._tables.replicas.named_until_s.values.item(replica) > 0
        return slot.is_suspect, is_leaving, TIERS.index(slot.tier)

    def _presence(self, row: int, now_s: float) -> int:
        """Of a block whose first replica will not do."""
        state = 0
        for replica in self._tables.chain(row):
            slot = self._tables.slot_of(replica)
            if slot.is_dropped or slot.is_suspect:
                state = state or 2
            elif self._tables.replicas.named_until_s.values.item(replica) <= now_s:
                return 1
        return state
