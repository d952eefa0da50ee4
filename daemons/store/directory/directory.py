"""Block -> replicas for the whole pool, in memory only: rebuilt from the nodes' announcements after every start.

Pure: no clock, no I/O. Its parts work on the same tables: Lookups says where blocks can be read, Recording takes in
what nodes report, VictimChoice says what goes when a node is full. A dropped node's rows are passed over at once and
swept later.
"""

from collections.abc import Iterable, Mapping

from daemons.core.ids import BlockHash, HostId, NodeId
from daemons.protocol.block import Tier
from daemons.protocol.report import Shortage
from daemons.protocol.segment import RegionRef
from daemons.store.directory.columns import NO_ROW
from daemons.store.directory.invariants import check_tables
from daemons.store.directory.lookups import Lookups
from daemons.store.directory.lookups_together import LookupsTogether
from daemons.store.directory.recording import Recording
from daemons.store.directory.slot_table import TIERS, Place, Slot
from daemons.store.directory.tables import RENAME_AFTER_S, Tables
from daemons.store.eviction.heat import HeatTable
from daemons.store.eviction.policies import POLICIES, EvictionPolicy
from daemons.store.eviction.victim_choice import VictimChoice


class Directory:
    """Every method costs O(its arguments) except `victims`, listings and statistics, which scan columns in numpy."""

    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        policy = policy or POLICIES["lru"]
        self.tables = Tables(HeatTable() if policy.needs_heat else None)
        self.slots = self.tables.slots
        self.blocks = self.tables.blocks
        self.replicas = self.tables.replicas
        self.leases = self.tables.leases
        self.pins = self.tables.pins
        self.heat = self.tables.heat
        self.away = self.tables.away
        lookups = Lookups(self.tables)
        self.lookups = lookups.counts
        self.find_prefix = lookups.find_prefix
        self.match = lookups.match
        self.take = lookups.take
        self.lease = lookups.lease
        self.locate = lookups.locate
        self.best_places = lookups.best_places
        self.leading_by_host = lookups.leading_by_host
        self.presence = lookups.presence
        together = LookupsTogether(self.tables, lookups)
        self.match_together = together.match
        self.lease_together = together.lease
        self.choice = VictimChoice(self.tables, policy)
        recording = Recording(self.tables)
        self.record_sealed = recording.record_sealed
        self.record_checked = recording.record_checked
        self.record_freed = recording.record_freed
        self.sweep = recording.sweep

    # -- nodes ---------------------------------------------------------------------------------------------------

    def add_node(
        self, node: NodeId, host_id: HostId, region: RegionRef, *, control: str = ""
    ) -> None:
        """Start a life of this node with nothing; what was known of an earlier one is dropped, in all its tiers.

        `control` is where readers ask it to stage what does not lie in the region.
        """
        self.drop_node(node)
        self.slots.open(Slot(node, host_id, region, control=control))

    def set_segments(self, node: NodeId, regions: Mapping[int, RegionRef]) -> None:
        """All segments in DRAM that this node lends now, by number; what lies in others is freed by it first."""
        number = self.tables.number_of(node, "dram")
        self.slots.set_regions(number, {n: region for n, region in regions.items() if n})

    def add_tier(self, node: NodeId, tier: Tier) -> None:
        """The node has this tier below its DRAM, too. Raises NotFound for one that lends nothing."""
        if (node, tier) in self.slots.by_place:
            return
        number = self.tables.number_of(node, "dram")
        dram = self.slots[number]
        opened = Slot(
            node,
            dram.host_id,
            dram.region,
            control=dram.control,
            tier=tier,
            is_suspect=dram.is_suspect,
        )
        self.slots.open(opened)
        self.slots.add_lower(number)

    @property
    def has_lower(self) -> bool:
        """Whether any node has a tier below DRAM."""
        return any(tier != "dram" for _, tier in self.slots.by_place)

    @property
    def is_sweeping(self) -> bool:
        """Whether rows of dropped nodes are left."""
        return any(slot.is_swept for _, slot in self.slots)

    def has_tier(self, node: NodeId, tier: Tier) -> bool:
        return (node, tier) in self.slots.by_place

    def nodes_of(self, row: int) -> set[NodeId]:
        """Those with a replica of this block in any tier."""
        slots = map(self.tables.slot_of, self.tables.chain(row))
        return {slot.node for slot in slots if not slot.is_dropped}

    def is_at(self, node: NodeId, region: RegionRef) -> bool:
        """Whether this node is known with this segment."""
        slot = self.slots.find((node, "dram"))
        return slot is not None and slot.region == region

    def drop_node(self, node: NodeId) -> int:
        """Forget the node and all it holds, O(1); how many replicas that were. Fine for an unknown one."""
        num_replicas = 0
        self.tables.announced.discard(node)
        for number in self.slots.numbers_of(node):
            num_replicas += self.slots[number].num_replicas
            self.choice.forget(number)
            self.slots.drop(number)
        return num_replicas

    def keep_away(self, node: NodeId) -> int:
        """As `drop_node`, but what it held stays countable until `let_go`; returns how many replicas that are."""
        for number in self.slots.numbers_of(node):
            self.slots[number].is_kept = True
        return self.drop_node(node)

    def let_go(self, node: NodeId) -> None:
        """The node is back or given up: what it held in lives before this one is swept."""
        for _, slot in self.slots:
            if slot.is_kept and slot.node == node:
                slot.is_kept = False

    def announced(self, node: NodeId) -> None:
        """It has said all that it holds: objects that went with it and are not there are absent, not away."""
        announced = self.tables.announced
        if node in announced:
            return
        announced.add(node)
        for known in (self.away, self.tables.left):
            for key in [key for key, held_by in known.items() if node in held_by]:
                others = tuple(other for other in known[key] if other != node)
                if others:
                    known[key] = others
                else:
                    del known[key]

    def kept_nodes(self, block_hash: BlockHash) -> set[NodeId]:
        """Nodes that are away for a short while and held the block."""
        slots = map(self.tables.slot_of, self.tables.chain_of(block_hash))
        return {slot.node for slot in slots if slot.is_kept}

    def set_suspect(self, node: NodeId, is_suspect: bool) -> None:
        """Readers prefer the replicas of others."""
        for number in self.slots.numbers_of(node):
            self.slots.set_suspect(number, is_suspect)

    def num_blocks_on(self, node: NodeId, tier: Tier = "dram") -> int:
        slot = self.slots.find((node, tier))
        return 0 if slot is None else slot.num_replicas

    # -- single blocks -------------------------------------------------------------------------------------------

    def wanted_of(self, block_hash: BlockHash) -> int:
        """Replicas that were asked for; 0 for as many as the pool wants, or an unknown block."""
        row = self.blocks.row_by_hash.get(block_hash)
        return 0 if row is None else self.blocks.wanted.values.item(row)

    def replicas_for(self, block_hash: BlockHash, default: int) -> int:
        """How many it should have now: as many as were asked for, and those that its heat wants."""
        row = self.blocks.row_by_hash.get(block_hash)
        if row is None:
            return default
        wanted = self.blocks.wanted.values.item(row) or default
        return max(wanted, self.blocks.hot.values.item(row))

    def length_on(self, place: Place, block_hash: BlockHash) -> int:
        """Bytes of the replica there; 0 when there is none."""
        number = self.slots.by_place.get(place)
        replica = NO_ROW if number is None else self.tables.replica_on(number, block_hash)
        return 0 if replica == NO_ROW else self.replicas.length.values.item(replica)

    def tier_below(self, place: Place, block_hash: BlockHash) -> Tier | None:
        """The next lower tier of this node that holds the block, too."""
        node, tier = place
        for lower in TIERS[TIERS.index(tier) + 1 :]:
            if self.length_on((node, lower), block_hash):
                return lower
        return None

    def versions_of(self, block_hash: BlockHash) -> list[tuple[Place, int]]:
        """Place and version of each replica of an object that can be reached."""
        chain = self.tables.chain_of(block_hash)
        slots = [(self.tables.slot_of(r), self.replicas.number("version", r)) for r in chain]
        return [(slot.place, version) for slot, version in slots if not slot.is_dropped]

    def lease_until(self, block_hash: BlockHash, until_s: float) -> bool:
        """Longer or shorter than before; False when it is not here."""
        row = self.blocks.row_by_hash.get(block_hash)
        if row is not None:
            self.leases.until_s.values[row] = until_s
        return row is not None

    def end_lease(self, block_hash: BlockHash, *, beyond_s: float) -> bool:
        """Of one that lasts beyond then; False when the block is not here."""
        row = self.blocks.row_by_hash.get(block_hash)
        if row is not None and self.leases.until_s.values.item(row) > beyond_s:
            self.leases.until_s.values[row] = 0.0
        return row is not None

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

        Of pinned ones the soft come last and the hard never. A node that reports often is not told twice.
        """
        number = self.slots.by_place.get((node, tier))
        if number is None:
            return []
        rows = self.choice.name(number, num_bytes, now_s=now_s, max_blocks=max_blocks)
        return self.blocks.hashes_of(self.replicas.block.values[rows])

    def fitting_victims(
        self, node: NodeId, shortage: Shortage, *, now_s: float, max_blocks: int
    ) -> list[BlockHash]:
        """As `victims`, for a node that has room, but no slot of the size that a put waits for."""
        number = self.slots.by_place.get((node, "dram"))
        if number is None:
            return []
        rows = self.choice.name_fitting(number, shortage, now_s=now_s, max_blocks=max_blocks)
        return self.blocks.hashes_of(self.replicas.block.values[rows])

    def coldest(
        self, node: NodeId, num_bytes: int, *, now_s: float, max_blocks: int
    ) -> list[BlockHash]:
        """What would leave this node's DRAM next; only looks."""
        number = self.slots.by_place.get((node, "dram"))
        if number is None:
            return []
        rows = self.choice.coldest(number, num_bytes, now_s, max_blocks)
        return self.blocks.hashes_of(self.replicas.block.values[rows])

    def give_up(
        self, node: NodeId, hashes: Iterable[BlockHash], *, now_s: float
    ) -> list[BlockHash]:
        """Replicas in this node's DRAM that may go: not leased, not named as a victim. They are offered no more."""
        number = self.tables.number_of(node, "dram")
        named_until_s, given = self.replicas.named_until_s.values, []
        for block_hash in hashes:
            replica = self.tables.replica_on(number, block_hash)
            if replica == NO_ROW or named_until_s.item(replica) > now_s:
                continue
            if not self.leases.is_leased(self.replicas.block.values.item(replica), now_s=now_s):
                self.replicas.name_victims(replica, now_s + RENAME_AFTER_S)
                given.append(block_hash)
        return given

    def check_invariants(self) -> None:
        """For tests."""
        check_tables(self.tables)
