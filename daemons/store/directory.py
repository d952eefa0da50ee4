"""Block -> replicas for the whole pool, in memory only: rebuilt from the nodes' announcements after every start.

Pure: no clock, no I/O. Invariant: a block is at least as recent, as long leased and, where heat is kept, as hot as the
block that follows it in its prefix, so evicting in these orders never cuts a prefix that is still in use. A dropped
node's rows are passed over at once and swept later. Longer than most files, for the walk over rows is written out
where it is hot.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daemons.core.errors import NotFound
from daemons.core.ids import BlockHash, HostId, NodeId
from daemons.protocol.block import MAX_REPLICAS, BlockLocation, SealedBlock, Tier
from daemons.protocol.segment import SEGMENT_SPAN_BITS, RegionRef
from daemons.store.block_table import NO_ROW, BlockTable
from daemons.store.eviction import POLICIES, EvictionPolicy
from daemons.store.heat import HeatTable
from daemons.store.lease import LeaseTable
from daemons.store.pins import PinTable
from daemons.store.replica_table import RANKS, TIERS, Place, ReplicaTable, Slot
from daemons.store.report_check import check_sealed
from daemons.store.victim_choice import VictimChoice

MAX_AWAY = 100_000
RENAME_AFTER_S = 1.0
"""A victim that was named is not named again, nor offered to readers, before this has passed."""

FRESH_MS = 1000
"""A seal that is older is no use of the block."""


@dataclass(slots=True)
class LookupCounts:
    num_lookups: int = 0
    num_lookup_blocks: int = 0
    num_hit_blocks: int = 0


class Directory:
    """Every method costs O(its arguments) except `victims`, listings and statistics, which scan columns in numpy."""

    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        self.blocks = BlockTable()
        self.replicas = ReplicaTable()
        self.leases = LeaseTable()
        self.pins = PinTable()
        self.lookups = LookupCounts()
        self.policy = policy or POLICIES["lru"]
        self.heat = HeatTable() if self.policy.needs_heat else None
        self.choice = VictimChoice(
            self.blocks, self.replicas, self.leases, self.pins, self.heat, self.policy
        )
        self.slot_by_place: dict[Place, int] = {}
        self.away: dict[BlockHash, NodeId] = {}
        """Objects whose last replica went with this node, which may bring it back."""
        self._turn = 0
        """Counts look-ups that lease."""
        self._num_dropped = 0
        """Slots that wait to be swept, so that nothing is scanned when there is none."""
        self._sweep_at = 0

    # -- nodes ---------------------------------------------------------------------------------------------------

    def add_node(
        self, node: NodeId, host_id: HostId, region: RegionRef, *, control: str = ""
    ) -> None:
        """Start a life of this node with nothing; what was known of an earlier one is dropped, in all its tiers.

        `control` is where readers ask it to stage what does not lie in the region.
        """
        self.drop_node(node)
        opened = Slot(node, host_id, region, control=control)
        self.slot_by_place[node, "dram"] = self.replicas.open_slot(opened)

    def set_segments(self, node: NodeId, regions: Mapping[int, RegionRef]) -> None:
        """All segments in DRAM that this node lends now, by number; what lies in others is freed by it first."""
        dram = self._slot(self._number(node, "dram"))
        dram.regions = {number: region for number, region in regions.items() if number}

    def add_tier(self, node: NodeId, tier: Tier) -> None:
        """The node has this tier below its DRAM, too. Raises NotFound for one that lends nothing."""
        if (node, tier) in self.slot_by_place:
            return
        dram = self._slot(self._number(node, "dram"))
        opened = Slot(
            node,
            dram.host_id,
            dram.region,
            control=dram.control,
            tier=tier,
            is_suspect=dram.is_suspect,
        )
        self.slot_by_place[node, tier] = self.replicas.open_slot(opened)
        dram.has_lower = True

    def numbers_of(self, node: NodeId) -> list[int]:
        """Its slots, the one in DRAM first."""
        return [
            number for tier in TIERS if (number := self.slot_by_place.get((node, tier))) is not None
        ]

    @property
    def has_lower(self) -> bool:
        """Whether any node has a tier below DRAM."""
        return any(tier != "dram" for _, tier in self.slot_by_place)

    def has_tier(self, node: NodeId, tier: Tier) -> bool:
        return (node, tier) in self.slot_by_place

    def nodes_of(self, row: int) -> set[NodeId]:
        """Those with a replica of this block in any tier."""
        slots = (self.replicas.slot_of(replica) for replica in self._chain(row))
        return {slot.node for slot in slots if not slot.is_dropped}

    def is_at(self, node: NodeId, region: RegionRef) -> bool:
        """Whether this node is known with this segment."""
        number = self.slot_by_place.get((node, "dram"))
        return number is not None and self._slot(number).region == region

    def drop_node(self, node: NodeId) -> int:
        """Forget the node and all it holds, O(1); how many replicas that were. Fine for an unknown one."""
        return sum(self._drop_place((node, tier)) for tier in TIERS)

    def keep_away(self, node: NodeId) -> int:
        """As `drop_node`, but what it held stays countable until `let_go`; returns how many replicas that are."""
        for number in self.numbers_of(node):
            self._slot(number).is_kept = True
        return self.drop_node(node)

    def let_go(self, node: NodeId) -> None:
        """The node is back or given up: what it held in lives before this one is swept."""
        for slot in self.replicas.slots:
            if slot is not None and slot.is_kept and slot.node == node:
                slot.is_kept = False
                self._num_dropped += 1

    def kept_nodes(self, block_hash: BlockHash) -> set[NodeId]:
        """Nodes that are away for a short while and held the block."""
        row = self.blocks.row_by_hash.get(block_hash)
        if row is None:
            return set()
        slots = [self.replicas.slot_of(replica) for replica in self._chain(row)]
        return {slot.node for slot in slots if slot.is_kept}

    def wanted_of(self, block_hash: BlockHash) -> int:
        """Replicas that were asked for; 0 for as many as the pool wants, or an unknown block."""
        row = self.blocks.row_by_hash.get(block_hash)
        return 0 if row is None else self.blocks.wanted[row]

    def replicas_for(self, block_hash: BlockHash, default: int) -> int:
        """How many it should have now: as many as were asked for, and those that its heat wants."""
        row = self.blocks.row_by_hash.get(block_hash)
        if row is None:
            return default
        return max(self.blocks.wanted[row] or default, self.blocks.hot[row])

    def give_up(
        self, node: NodeId, hashes: Iterable[BlockHash], *, now_s: float
    ) -> list[BlockHash]:
        """Replicas in this node's DRAM that may go: not leased, not named as a victim. They are offered no more."""
        number = self._number(node, "dram")
        given = []
        for block_hash in hashes:
            replica = self._replica_on(number, block_hash)
            if replica == NO_ROW or self.replicas.named_until_s[replica] > now_s:
                continue
            if not self.leases.is_leased(self.replicas.block[replica], now_s=now_s):
                self.replicas.name_victim(replica, now_s + RENAME_AFTER_S)
                given.append(block_hash)
        return given

    def _drop_place(self, place: Place) -> int:
        number = self.slot_by_place.pop(place, None)
        if number is None:
            return 0
        slot = self._slot(number)
        slot.is_dropped = True
        self.choice.forget(number)
        if slot.num_replicas == 0:
            self.replicas.slots[number] = None
        elif not slot.is_kept:
            self._num_dropped += 1
        return slot.num_replicas

    def set_suspect(self, node: NodeId, is_suspect: bool) -> None:
        """Readers prefer the replicas of others."""
        for number in self.numbers_of(node):
            self._slot(number).is_suspect = is_suspect

    def num_blocks_on(self, node: NodeId, tier: Tier = "dram") -> int:
        number = self.slot_by_place.get((node, tier))
        return 0 if number is None else self._slot(number).num_replicas

    def length_on(self, place: Place, block_hash: BlockHash) -> int:
        """Bytes of the replica there; 0 when there is none."""
        number = self.slot_by_place.get(place)
        replica = NO_ROW if number is None else self._replica_on(number, block_hash)
        return 0 if replica == NO_ROW else self.replicas.length[replica]

    def tier_below(self, place: Place, block_hash: BlockHash) -> Tier | None:
        """The next lower tier of this node that holds the block, too."""
        node, tier = place
        for lower in TIERS[TIERS.index(tier) + 1 :]:
            if self.length_on((node, lower), block_hash):
                return lower
        return None

    # -- what nodes report ---------------------------------------------------------------------------------------

    def record_sealed(
        self, node: NodeId, sealed: Sequence[SealedBlock], *, now_s: float, tier: Tier = "dram"
    ) -> list[SealedBlock]:
        """All or nothing: ProtocolError for a malformed record. Returns those that are new in this tier of the node."""
        number = self._number(node, tier)
        check_sealed(sealed)
        known = self.blocks.row_by_hash
        fresh = {block.meta.hash: block for block in sealed if block.meta.hash not in known}
        if len(fresh) == len(sealed):
            self._record_new(number, sealed, now_s)
            return list(sealed)
        if fresh:
            self._record_new(number, list(fresh.values()), now_s)
        added = list(fresh.values())
        is_first = set(map(id, added))
        added += [
            block
            for block in sealed
            if id(block) not in is_first and self._record_known(number, block, now_s)
        ]
        return added

    def record_freed(
        self, node: NodeId, hashes: Iterable[BlockHash], *, tier: Tier = "dram"
    ) -> list[BlockHash]:
        """Returns those that this tier of the node had."""
        number = self._number(node, tier)
        find, head = self.blocks.row_by_hash.get, self.blocks.head
        following, slot_of = self.replicas.next, self.replicas.slot
        freed: list[BlockHash] = []
        alone: dict[BlockHash, int] = {}  # by row; blocks with this replica only, which most have
        for block_hash in dict.fromkeys(hashes):
            row = find(block_hash)
            if row is None:
                continue
            replica = head[row]
            if slot_of[replica] == number and following[replica] == NO_ROW:
                alone[block_hash] = row
                freed.append(block_hash)
            elif self._free_one(number, block_hash):
                freed.append(block_hash)
        self._free_alone(number, alone)
        return freed

    # -- lookups -------------------------------------------------------------------------------------------------

    def match_prefix(
        self,
        hashes: Sequence[BlockHash],
        *,
        now_s: float,
        lease_s: float,
        near: HostId | None = None,
    ) -> list[BlockLocation]:
        """The best replica of each block of the longest prefix that is here; leased unless `lease_s` is 0."""
        rows = self.find_prefix(hashes, now_s=now_s)
        return self.take(rows, len(hashes), now_s=now_s, lease_s=lease_s, near=near)

    def find_prefix(self, hashes: Sequence[BlockHash], *, now_s: float) -> list[int]:
        """Rows of the longest prefix of the chain that can be read; only looks."""
        rows = []
        row_by_hash, head = self.blocks.row_by_hash, self.blocks.head
        replicas = self.replicas
        following, slots, slot_of = replicas.next, replicas.slots, replicas.slot
        named_until_s = replicas.named_until_s
        for block_hash in hashes:
            row = row_by_hash.get(block_hash)
            if row is None:
                break
            replica = head[row]
            if following[replica] == NO_ROW:  # the one replica that most blocks have
                slot = slots[slot_of[replica]]
                if slot is None or slot.is_dropped or named_until_s[replica] > now_s:
                    break
            elif self._pick(row, now_s, None) == NO_ROW:
                break
            rows.append(row)
        return rows

    def take(
        self,
        rows: Sequence[int],
        num_asked: int,
        *,
        now_s: float,
        lease_s: float,
        near: HostId | None = None,
    ) -> list[BlockLocation]:
        """Locations of rows that `find_prefix` found just now, replicas on the host `near` first."""
        if lease_s > 0:
            self.leases.touch(rows, now_s=now_s, lease_s=lease_s)
            if self.heat is not None:
                self.heat.touch(rows, now_s=now_s)
            if rows:  # a chain that was asked for from its middle
                self._touch_parents(rows[0], now_s, now_s + lease_s)
            self.lookups.num_lookups += 1
            self.lookups.num_lookup_blocks += num_asked
            self.lookups.num_hit_blocks += len(rows)
            self._turn += 1
        head, following = self.blocks.head, self.replicas.next
        return self._locations(
            [
                head[row] if following[head[row]] == NO_ROW else self._pick(row, now_s, near)
                for row in rows
            ]
        )

    def best_places(self, rows: Sequence[int], *, now_s: float) -> list[Place]:
        """Where each of these rows would be read from, by whoever is near none of them; only looks."""
        slot_of = self.replicas.slot_of
        return [slot_of(self._pick(row, now_s, None)).place for row in rows]

    def locate(
        self, hashes: Sequence[BlockHash], *, now_s: float, lease_s: float
    ) -> list[list[BlockLocation]]:
        """Every replica of each block, the ones to prefer first."""
        found = []
        num_hits = 0
        for block_hash in hashes:
            row = self.blocks.row_by_hash.get(block_hash)
            replicas = [] if row is None else self._live(row, now_s)
            replicas.sort(key=self._preference)
            if replicas and row is not None and lease_s > 0:
                if self.heat is not None:
                    self.heat.touch([row], now_s=now_s)
                self._touch_chain(row, now_s, now_s + lease_s)
                num_hits += 1
            found.append(self._locations(replicas))
        if lease_s > 0:
            self.lookups.num_lookups += 1
            self.lookups.num_lookup_blocks += len(hashes)
            self.lookups.num_hit_blocks += num_hits
        return found

    def leading_by_host(self, rows: Sequence[int], *, now_s: float) -> dict[HostId, int]:
        """How many of the first blocks of a prefix each host holds; `rows` are those that `find_prefix` found just now.

        Flat, for it runs per block and plan: blocks on one host alone cost next to nothing.
        """
        head, following = self.blocks.head, self.replicas.next
        slots, slot_of, named_until_s = (
            self.replicas.slots,
            self.replicas.slot,
            self.replicas.named_until_s,
        )
        counts: dict[HostId, int] = {}
        holding: set[HostId] | None = None
        alone: HostId | None = None  # the host that is all of `holding`: most prefixes lie on one
        for index, row in enumerate(rows):
            replica = head[row]
            if alone is not None and following[replica] == NO_ROW:
                slot = slots[slot_of[replica]]
                if slot is not None and slot.host_id == alone:
                    continue
            here = set()
            while replica != NO_ROW:
                slot = slots[slot_of[replica]]
                if slot is not None and not slot.is_dropped and named_until_s[replica] <= now_s:
                    here.add(slot.host_id)
                replica = following[replica]
            left = here if holding is None else holding & here
            if holding is not None and left != holding:
                counts.update(dict.fromkeys(holding - left, index))
            if not left:
                return counts
            holding = left
            alone = next(iter(left)) if len(left) == 1 else None
        return counts | dict.fromkeys(holding or (), len(rows))

    # -- space ---------------------------------------------------------------------------------------------------

    def victims(
        self,
        node: NodeId,
        num_bytes: int,
        *,
        now_s: float,
        max_blocks: int = 4096,
        tier: Tier = "dram",
    ) -> list[BlockHash]:
        """Blocks to free in this tier to regain `num_bytes`: never leased ones, nor those named just before.

        Of pinned ones the soft come last and the hard never.

        What is named counts as freed for RENAME_AFTER_S, so a node that reports often is not told twice.
        """
        number = self.slot_by_place.get((node, tier))
        if number is None:
            return []
        slot = self._slot(number)
        if now_s >= slot.pending_until_s:
            slot.pending_bytes = 0
        num_bytes -= slot.pending_bytes
        if num_bytes <= 0:
            return []
        rows = self.choice.next_victims(number, num_bytes, now_s, max_blocks)
        for row in rows:
            self.replicas.name_victim(row, now_s + RENAME_AFTER_S)
            slot.pending_bytes += self.replicas.length[row]
        slot.pending_until_s = now_s + RENAME_AFTER_S
        return self.blocks.hashes_of([self.replicas.block[row] for row in rows])

    def coldest(
        self, node: NodeId, num_bytes: int, *, now_s: float, max_blocks: int
    ) -> list[BlockHash]:
        """What would leave this node's DRAM next; only looks."""
        number = self.slot_by_place.get((node, "dram"))
        if number is None:
            return []
        rows = self.choice.coldest(number, num_bytes, now_s, max_blocks)
        return self.blocks.hashes_of([self.replicas.block[row] for row in rows])

    def sweep(self, max_rows: int) -> list[tuple[Place, BlockHash]]:
        """Clean up to `max_rows` rows of dropped nodes; returns the replicas that are gone with them."""
        if self._num_dropped == 0:
            return []
        head, following, hash_of = self.blocks.head, self.replicas.next, self.blocks.hash_of
        gone: list[tuple[Place, BlockHash]] = []
        alone: dict[int, dict[BlockHash, int]] = {}
        for row in self._dropped_rows(max_rows):
            number, block = self.replicas.slot[row], self.replicas.block[row]
            place, block_hash = self._slot(number).place, hash_of(block)
            if head[block] == row and following[row] == NO_ROW:
                alone.setdefault(number, {})[block_hash] = block
                gone.append((place, block_hash))
                if block in self.blocks.names:
                    self._keep_away_name(block_hash, place[0])
                continue
            self._unlink(block, row)
            living = self.slot_by_place.get(place)
            if living is None or self._on_slot(block, living) == NO_ROW:
                gone.append((place, block_hash))
        for number, blocks in alone.items():
            self._free_alone(number, blocks)
        self._num_dropped = sum(
            slot is not None and slot.is_dropped and not slot.is_kept
            for slot in self.replicas.slots
        )
        return gone

    def _keep_away_name(self, block_hash: BlockHash, node: NodeId) -> None:
        self.away[block_hash] = node
        if len(self.away) > MAX_AWAY:
            del self.away[next(iter(self.away))]

    # -- objects -------------------------------------------------------------------------------------------------

    def versions_of(self, block_hash: BlockHash) -> list[tuple[Place, int]]:
        """Place and version of each replica of an object that can be reached."""
        row = self.blocks.row_by_hash.get(block_hash)
        chain = [] if row is None else self._chain(row)
        slots = [(self.replicas.slot_of(r), self.replicas.version[r]) for r in chain]
        return [(slot.place, version) for slot, version in slots if not slot.is_dropped]

    def lease_until(self, block_hash: BlockHash, until_s: float) -> bool:
        """Longer or shorter than before; False when it is not here."""
        row = self.blocks.row_by_hash.get(block_hash)
        if row is not None:
            self.leases.until_s[row] = until_s
        return row is not None

    def presence(self, rows: Sequence[int], *, now_s: float) -> bytearray:
        """For each row, NO_ROW among them: 0 absent, 1 readable, 2 only on nodes that are suspect or gone."""
        if not rows:
            return bytearray()
        replicas, slots = self.replicas, self.replicas.slots
        if replicas.is_all_readable(now_s=now_s):
            return bytearray(map(NO_ROW.__ne__, rows))
        wanted = np.array(rows, np.int64)
        known = wanted >= 0
        if not known.any():
            return bytearray(len(rows))
        is_up = np.array([s is not None and not (s.is_dropped or s.is_suspect) for s in slots])
        head = np.frombuffer(self.blocks.head, np.int32)[wanted[known]]
        is_good = is_up[replicas.slot_column()[head]]
        is_good &= np.frombuffer(replicas.named_until_s, np.float64)[head] <= now_s
        states = np.zeros(len(rows), np.uint8)
        states[known] = is_good
        found = bytearray(states.tobytes())
        for index in np.flatnonzero(known & (states == 0)).tolist():
            found[index] = self._presence(rows[index], now_s)
        return found

    def _presence(self, row: int, now_s: float) -> int:
        """Of a block whose first replica will not do."""
        state = 0
        for replica in self._chain(row):
            slot = self.replicas.slot_of(replica)
            if slot.is_dropped or slot.is_suspect:
                state = state or 2
            elif self.replicas.named_until_s[replica] <= now_s:
                return 1
        return state

    # -- checks --------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """For tests: every row is reachable exactly once, counters agree, prefixes are no older than suffixes."""
        seen: set[int] = set()
        num_by_slot: dict[int, int] = {}
        bytes_by_slot: dict[int, int] = {}
        for block_hash, row in self.blocks.row_by_hash.items():
            assert self.blocks.hash_of(row) == block_hash
            assert self.blocks.kind[row] != NO_ROW
            named = self.blocks.names.get(row)
            assert named is None or self.blocks.rows_by_name[named.namespace][named.name] == row
            assert self.blocks.head[row] != NO_ROW, "a block without replicas is removed"
            for replica in self._chain(row):
                assert replica not in seen
                seen.add(replica)
                assert self.replicas.block[replica] == row
                number = self.replicas.slot[replica]
                num_by_slot[number] = num_by_slot.get(number, 0) + 1
                bytes_by_slot[number] = bytes_by_slot.get(number, 0) + self.replicas.length[replica]
            parent = self.blocks.row_by_hash.get(self.blocks.parent_of(row))
            if parent is not None:
                assert self.leases.used_s[parent] >= self.leases.used_s[row]
                # A parent that came back is as hot as what follows it from the next use on.
                if self.heat and self.leases.used_s[row] > self.blocks.created_s[parent]:
                    assert self.heat.heat[parent] >= self.heat.heat[row]
        assert len(seen) == self.replicas.num_rows
        for number, slot in enumerate(self.replicas.slots):
            if slot is not None:
                assert slot.num_replicas == num_by_slot.get(number, 0)
                assert slot.num_bytes == bytes_by_slot.get(number, 0)
        assert sum(self.blocks.num_by_kind) == len(self.blocks)
        for place, number in self.slot_by_place.items():
            assert self._slot(number).place == place
            assert not self._slot(number).is_dropped

    # -- inside --------------------------------------------------------------------------------------------------

    def _slot(self, number: int) -> Slot:
        slot = self.replicas.slots[number]
        assert slot is not None, "a slot in use is open"
        return slot

    def _number(self, node: NodeId, tier: Tier) -> int:
        number = self.slot_by_place.get((node, tier))
        if number is None:
            raise NotFound(f"node {node} lends no {tier} to this pool; join first")
        return number

    def _preference(self, replica: int) -> tuple[bool, bool, int]:
        """Lowest first. `named_until_s` is 0 where it never was a victim."""
        slot = self.replicas.slot_of(replica)
        is_leaving = self.replicas.named_until_s[replica] > 0
        return slot.is_suspect, is_leaving, TIERS.index(slot.tier)

    def _record_new(self, number: int, sealed: Sequence[SealedBlock], now_s: float) -> None:
        """Blocks that were nowhere, each once."""
        metas = [block.meta for block in sealed]
        rows = self.blocks.add_all(metas, [now_s - block.age_ms / 1000 for block in sealed])
        self.leases.add_all(rows, now_s=now_s)
        replicas = self.replicas.add_all(number, rows, sealed)
        head = self.blocks.head
        for row, replica, block in zip(rows, replicas, sealed, strict=True):
            head[row] = replica
            if block.wanted:
                self._want(row, block.wanted)
        self.pins.blocks_added(self.blocks, rows)
        if self.away:
            for meta in metas:
                self.away.pop(meta.hash, None)
        if self.heat is not None:
            for row, meta in zip(rows, metas, strict=True):
                self.heat.add(row, meta.hash, now_s=now_s)
            for row in rows:
                self._touch_parents(row, now_s, 0.0)
            return
        find, used_s = self.blocks.row_by_hash.get, self.leases.used_s
        for meta in metas:
            parent = find(meta.parent)
            if parent is not None and used_s[parent] < now_s:
                self._touch_chain(parent, now_s, 0.0)

    def _record_known(self, number: int, sealed: SealedBlock, now_s: float) -> bool:
        """Whether it is new in this slot."""
        row = self.blocks.row_by_hash[sealed.meta.hash]
        if sealed.wanted:
            self._want(row, sealed.wanted)
        if sealed.meta.name:
            self.blocks.name(row, sealed.meta)
        held = self._on_slot(row, number)
        if held != NO_ROW:
            self.replicas.replace(held, sealed)
            return False
        self.pins.replica_added(row)
        if sealed.age_ms < FRESH_MS and self._slot(number).tier == "dram":
            # Else a copy, announced again, or moved down: no use of it.
            self._touch_chain(row, now_s, 0.0)
        replica = self.replicas.add(number, row, sealed)
        self.replicas.next[replica] = self.blocks.head[row]
        self.blocks.head[row] = replica
        return True

    def _want(self, row: int, count: int) -> None:
        """What was asked for here is newer than what a node remembers."""
        if not self.blocks.wanted[row]:
            self.blocks.want(row, min(count, MAX_REPLICAS))

    def _free_one(self, number: int, block_hash: BlockHash) -> bool:
        row = self.blocks.row_by_hash.get(block_hash)
        replica = NO_ROW if row is None else self._on_slot(row, number)
        if row is None or replica == NO_ROW:
            return False
        if self.replicas.named_until_s[replica] > 0:
            slot = self._slot(number)
            slot.pending_bytes = max(0, slot.pending_bytes - self.replicas.length[replica])
        self._unlink(row, replica)
        return True

    def _free_alone(self, number: int, alone: dict[BlockHash, int]) -> None:
        """Blocks, by row, that go with their only replica, which is in this slot."""
        head, length = self.blocks.head, self.replicas.length
        named_until_s = self.replicas.named_until_s
        replicas, num_pending = [], 0
        for block_hash, row in alone.items():
            replica = head[row]
            replicas.append(replica)
            if named_until_s[replica] > 0:
                num_pending += length[replica]
            self.pins.block_removed(row)
            if self.heat is not None:
                self.heat.remove(row, block_hash)
            head[row] = NO_ROW
        slot = self._slot(number)
        slot.pending_bytes = max(0, slot.pending_bytes - num_pending)
        self.replicas.remove_all(number, replicas)
        self.blocks.remove_all(alone)

    def _unlink(self, row: int, replica: int) -> None:
        """Take a replica out of its block; the block goes with its last one."""
        following = self.replicas.next
        if self.blocks.head[row] == replica:
            self.blocks.head[row] = following[replica]
        else:
            before = self.blocks.head[row]
            while following[before] != replica:
                before = following[before]
            following[before] = following[replica]
        self.replicas.remove(replica)
        if self.blocks.head[row] == NO_ROW:
            self.pins.block_removed(row)
            if self.heat is not None:
                self.heat.remove(row, self.blocks.hash_of(row))
            self.blocks.remove(row)

    def _chain(self, row: int) -> list[int]:
        chain = []
        replica = self.blocks.head[row]
        while replica != NO_ROW:
            chain.append(replica)
            replica = self.replicas.next[replica]
        return chain

    def _live(self, row: int, now_s: float) -> list[int]:
        slot_of, named_until_s = self.replicas.slot_of, self.replicas.named_until_s
        return [
            replica
            for replica in self._chain(row)
            if not slot_of(replica).is_dropped
            and (named_until_s[replica] <= now_s or slot_of(replica).has_lower)
        ]

    def _pick(self, row: int, now_s: float, near: HostId | None) -> int:
        """The best replica to read, NO_ROW when none can be; written flat, for every lookup runs it per block.

        Equal ones take turns, look-up by look-up, so that each serves its share of a hot block's readers.
        """
        replicas = self.replicas
        best, best_rank, best_turn = NO_ROW, -RANKS - 1, 0
        num_slots = len(replicas.slots)
        replica = self.blocks.head[row]
        while replica != NO_ROW:
            slot = replicas.slots[replicas.slot[replica]]
            is_named = replicas.named_until_s[replica] > now_s
            if slot is not None and not slot.is_dropped and (slot.has_lower or not is_named):
                rank = 1 if is_named else (slot.host_id == near) + slot.rank
                if slot.is_suspect:
                    rank -= RANKS
                turn = (replicas.slot[replica] + self._turn) % num_slots
                if rank > best_rank or (rank == best_rank and turn > best_turn):
                    best, best_rank, best_turn = replica, rank, turn
            replica = replicas.next[replica]
        return best

    def _on_slot(self, row: int, number: int) -> int:
        replica = self.blocks.head[row]
        while replica != NO_ROW and self.replicas.slot[replica] != number:
            replica = self.replicas.next[replica]
        return replica

    def _replica_on(self, number: int, block_hash: BlockHash) -> int:
        row = self.blocks.row_by_hash.get(block_hash)
        return NO_ROW if row is None else self._on_slot(row, number)

    def _touch_chain(self, row: int, now_s: float, until_s: float) -> None:
        self.leases.raise_to(row, used_s=now_s, until_s=until_s)
        self._touch_parents(row, now_s, until_s)

    def _touch_parents(self, row: int, now_s: float, until_s: float) -> None:
        """Ends at the first ancestor that needs nothing: those above it were touched with it."""
        parent = self.blocks.row_by_hash.get(self.blocks.parent_of(row))
        while parent is not None:
            is_raised = self.leases.raise_to(parent, used_s=now_s, until_s=until_s)
            if self.heat is not None:
                is_raised |= self.heat.raise_to(parent, row)
            if not is_raised:
                return
            row, parent = parent, self.blocks.row_by_hash.get(self.blocks.parent_of(parent))

    def _locations(self, rows: Sequence[int]) -> list[BlockLocation]:
        """Of these replicas, in order; columns as locals, for this is most of what a plan costs."""
        replicas, blocks = self.replicas, self.blocks
        slot_of, block_of, last = replicas.slot, replicas.block, NO_ROW
        offset, length, trailer_bytes = replicas.offset, replicas.length, replicas.trailer_bytes
        version, checksum, num_layers = (
            replicas.version,
            replicas.seal_checksum,
            replicas.num_layers,
        )
        locations = []
        for row, block_hash in zip(
            rows, blocks.hashes_of([block_of[row] for row in rows]), strict=True
        ):
            if slot_of[row] != last:  # most blocks of a prefix are where the one before is
                last = slot_of[row]
                slot = self._slot(last)
                node, region, tier, host_id = slot.node, slot.region, slot.tier, slot.host_id
                control = slot.control if tier != "dram" else ""
            at = offset[row]
            if at >> SEGMENT_SPAN_BITS:
                region, at = slot.find(at)
                last = NO_ROW  # the next one may lie in another segment
            location = BlockLocation(
                hash=block_hash,
                node=node,
                region=region,
                offset=at,
                length=length[row],
                trailer_bytes=trailer_bytes[row],
                version=version[row],
                seal_checksum=checksum[row],
                num_layers=num_layers[row],
                tier=tier,
                host_id=host_id,
                control=control,
            )
            locations.append(location)
        return locations

    def _dropped_rows(self, max_rows: int) -> list[int]:
        """The next ones from where the last sweep ended, looking at no more than 64 rows for each wanted."""
        is_dropped = self.replicas.is_swept_by_slot()
        start = self._sweep_at if self._sweep_at < len(self.replicas.slot) else 0
        window: NDArray[np.int32] = self.replicas.slot_column()[start : start + 64 * max_rows]
        hits = np.flatnonzero((window != NO_ROW) & is_dropped[np.maximum(window, 0)])[:max_rows]
        self._sweep_at = start + (int(hits[-1]) + 1 if len(hits) == max_rows else len(window))
        rows: list[int] = (hits + start).tolist()
        return rows
