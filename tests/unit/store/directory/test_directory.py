"""The directory against a plain model of it, and the promises that a model cannot state."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from daemons.core.errors import NotFound, ProtocolError, Rejected
from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockFilter, BlockLocation, BlockMeta, SealedBlock
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.prefix_hash import block_hashes, root_hash
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import RENAME_AFTER_S, Directory
from daemons.store.directory.listing import list_blocks, select_replicas, total
from daemons.store.directory.slot_table import Place
from daemons.store.eviction.heat import HALF_LIFE_S
from daemons.store.eviction.pins import HARD, SOFT, HeldPin
from daemons.store.eviction.policies import POLICIES
from daemons.store.eviction.victim_choice import SURPLUS_IDLE_S
from daemons.store.eviction.victim_queue import MAX_AGE_S

NAMESPACE = b"n" * 16
LENGTH = 100
N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
H0, H1 = HostId("h0"), HostId("h1")
HOSTS = {N0: H0, N1: H1, N2: H1}


def region(host: HostId = H0) -> RegionRef:
    address = DataAddress(host_id=host, unix_path="/u", tcp="127.0.0.1:1", epoch=Epoch(1))
    return RegionRef(address=address, region_id=1, size_bytes=1 << 30)


def chain(seed: int, num_blocks: int = 6) -> list[BlockHash]:
    return block_hashes(NAMESPACE, [seed * 1000 + i for i in range(num_blocks * 16)], 16)


def pairs(gone: dict[Place, list[BlockHash]]) -> list[tuple[Place, BlockHash]]:
    return [(place, block_hash) for place, hashes in gone.items() for block_hash in hashes]


def matched(made: Directory, hashes: list[BlockHash], **how: object) -> list[BlockLocation]:
    return made.match(hashes, **how).locations.unpack()  # type: ignore[arg-type]  # as the test names them


def sealed(hashes: list[BlockHash], *, model: str = "m", tenant: str = "") -> list[SealedBlock]:
    parents = [root_hash(NAMESPACE), *hashes]
    return [
        SealedBlock(
            meta=BlockMeta(
                hash=block_hash,
                parent=parents[depth],
                namespace=NAMESPACE,
                depth=depth,
                num_tokens=16,
                model=model,
                tenant=tenant,
            ),
            offset=depth * LENGTH,
            length=LENGTH,
            trailer_bytes=8,
            version=1,
            seal_checksum=9,
            num_layers=2,
        )
        for depth, block_hash in enumerate(hashes)
    ]


def directory(*nodes: NodeId) -> Directory:
    made = Directory()
    for node in nodes or (N0,):
        made.add_node(node, HOSTS[node], region(HOSTS[node]))
    return made


CHAINS = [chain(seed) for seed in range(4)]
ALL = [block for made in CHAINS for block in sealed(made)]
BLOCK_BY_HASH = {block.meta.hash: block for block in ALL}
nodes = st.sampled_from([N0, N1, N2])
places = st.sampled_from([(N0, "dram"), (N0, "ssd"), (N1, "dram"), (N2, "dram"), (N2, "ssd")])
chains = st.sampled_from(CHAINS)
lengths = st.integers(1, 6)


class DirectoryMachine(RuleBasedStateMachine):
    """Model: place -> set of hashes, leases and uses by hash."""

    def __init__(self) -> None:
        super().__init__()
        self.real = Directory()
        self.held: dict[Place, set[BlockHash]] = {}
        self.leased_until_s: dict[BlockHash, float] = {}
        self.named_until_s: dict[tuple[NodeId, BlockHash], float] = {}
        self.pins: dict[BlockHash, tuple[int, float]] = {}
        self.now_s = 0.0

    @initialize()
    def start(self) -> None:
        self.join(N0)

    @rule(node=nodes)
    def join(self, node: NodeId) -> None:
        self.real.add_node(node, HOSTS[node], region(HOSTS[node]), control=f"tcp://{node}")
        self._forget(node)
        self.held[node, "dram"] = set()

    @rule(node=nodes)
    def drop(self, node: NodeId) -> None:
        num_held = sum(len(held) for (at, _), held in self.held.items() if at == node)
        assert self.real.drop_node(node) == num_held
        self._forget(node)

    @rule(node=st.sampled_from([N0, N2]))
    def add_ssd(self, node: NodeId) -> None:
        if (node, "dram") in self.held:
            self.real.add_tier(node, "ssd")
            self.held.setdefault((node, "ssd"), set())
        else:
            with pytest.raises(NotFound):
                self.real.add_tier(node, "ssd")

    @rule(place=places, hashes=chains, start=st.integers(0, 5), count=lengths)
    def seal(self, place: Place, hashes: list[BlockHash], start: int, count: int) -> None:
        node, tier = place
        blocks = [BLOCK_BY_HASH[h] for h in hashes[start : start + count]]
        if place not in self.held:
            with pytest.raises(NotFound):
                self.real.record_sealed(
                    node, SealedBlocks.pack(blocks), now_s=self.now_s, tier=tier
                )
            return
        new = self.real.record_sealed(node, SealedBlocks.pack(blocks), now_s=self.now_s, tier=tier)
        assert {b.meta.hash for b in new} == {b.meta.hash for b in blocks} - self.held[place]
        for block in blocks:
            self.held[place].add(block.meta.hash)
            if tier == "dram":
                self.named_until_s.pop((node, block.meta.hash), None)

    @rule(place=places, hashes=chains, count=lengths)
    def free(self, place: Place, hashes: list[BlockHash], count: int) -> None:
        node, tier = place
        if place in self.held:
            freed = self.real.record_freed(node, hashes[-count:], tier=tier)
            assert set(freed) == self.held[place] & set(hashes[-count:])
            self._free(place, freed)

    @rule(hashes=chains, count=lengths, lease_s=st.sampled_from([0.0, 1.0, 5.0]))
    def match(self, hashes: list[BlockHash], count: int, lease_s: float) -> None:
        asked = hashes[:count]
        expected = []
        for block_hash in asked:
            if not self._readable(block_hash):
                break
            expected.append(block_hash)
        found = matched(self.real, asked, now_s=self.now_s, lease_s=lease_s, near=H1)
        assert [location.hash for location in found] == expected
        for location in found:
            readable = self._readable(location.hash)
            assert (location.node, location.tier) in readable
            assert (location.control == "") == (location.tier == "dram")
            staying = [place for place in readable if not self._is_named(*place, location.hash)]
            readable = staying or readable
            if any(tier == "dram" for _, tier in readable):
                readable = [place for place in readable if place[1] == "dram"]
                assert location.tier == "dram"
            assert (location.node, location.tier) in readable
            assert location.host_id == H1 or not any(HOSTS[node] == H1 for node, _ in staying)
        self._lease(expected, lease_s)

    @rule(hashes=chains, index=st.integers(0, 5), lease_s=st.sampled_from([0.0, 3.0]))
    def locate(self, hashes: list[BlockHash], index: int, lease_s: float) -> None:
        (found,) = self.real.locate([hashes[index]], now_s=self.now_s, lease_s=lease_s).unpack()
        places = [(location.node, location.tier) for location in found]
        assert set(places) == set(self._readable(hashes[index]))
        if found:
            self._lease([hashes[index]], lease_s)

    @rule(node=nodes, num_bytes=st.integers(0, 1000))
    def victims(self, node: NodeId, num_bytes: int) -> None:
        named = self.real.victims(node, num_bytes, now_s=self.now_s)
        assert len(set(named)) == len(named)
        assert len(named) <= -(-num_bytes // LENGTH)
        for block_hash in named:
            assert block_hash in self.held[node, "dram"]
            assert self.leased_until_s.get(block_hash, 0) <= self.now_s
            assert self.named_until_s.get((node, block_hash), 0) <= self.now_s
            assert block_hash not in self._pinned_hard()
            self.named_until_s[node, block_hash] = self.now_s + RENAME_AFTER_S

    @rule(hashes=chains, index=st.integers(0, 5), level=st.sampled_from([SOFT, HARD]))
    def pin(self, hashes: list[BlockHash], index: int, level: int) -> None:
        self.pins[hashes[index]] = (level, self.now_s + 5.0)
        self.real.pins.pin([hashes[index]], HeldPin(level, self.now_s + 5.0))

    @rule(hashes=chains)
    def unpin(self, hashes: list[BlockHash]) -> None:
        expected = [h for h in hashes if self.pins.get(h, (0, 0.0))[1] > self.now_s]
        assert set(expected) <= set(self.real.pins.unpin(hashes))
        for block_hash in hashes:
            self.pins.pop(block_hash, None)

    @rule(count=st.integers(1, 20))
    def sweep(self, count: int) -> None:
        for place, block_hash in pairs(self.real.sweep(count)):
            assert block_hash not in self.held.get(place, set())

    @rule(seconds=st.sampled_from([0.01, 0.7, 2.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def agrees(self) -> None:
        self.real.check_invariants()
        totals = total(self.real, now_s=self.now_s)
        everything = set().union(*self.held.values()) if self.held else set()
        assert totals.num_blocks == len(everything)
        assert totals.num_replicas == sum(len(held) for held in self.held.values())
        assert totals.blocks_by_model == ({"m": len(everything)} if everything else {})
        listed, has_more = list_blocks(
            self.real, BlockFilter(), after=None, limit=100, now_s=self.now_s
        )
        assert [block.meta.hash for block in listed] == sorted(everything)
        assert not has_more
        for block in listed:
            assert set(zip(block.nodes, block.tiers, strict=True)) == {
                place for place, held in self.held.items() if block.meta.hash in held
            }
            assert block.tier == min(block.tiers)
            assert block.meta == BLOCK_BY_HASH[block.meta.hash].meta
        selected = select_replicas(self.real, BlockFilter(), now_s=self.now_s)
        assert {place: set(held) for place, held in selected.items()} == {
            place: held for place, held in self.held.items() if held
        }

    def _readable(self, block_hash: BlockHash) -> list[Place]:
        """A victim is hidden, but where it is written to an SSD first."""
        return [
            (node, tier)
            for (node, tier), held in self.held.items()
            if block_hash in held
            and (
                (node, "ssd") in self.held
                or self.named_until_s.get((node, block_hash), 0) <= self.now_s
            )
        ]

    def _pinned_hard(self) -> set[BlockHash]:
        """The pinned and what is before them, as far as nothing is missing between."""
        present = {block for held in self.held.values() for block in held}
        found = set()
        for block_hash, (level, until_s) in self.pins.items():
            at = block_hash
            while level == HARD and until_s > self.now_s and at in present:
                found.add(at)
                at = BLOCK_BY_HASH[at].meta.parent
        return found

    def _lease(self, hashes: list[BlockHash], lease_s: float) -> None:
        for block_hash in hashes:
            until_s = self.now_s + lease_s
            self.leased_until_s[block_hash] = max(
                self.leased_until_s.get(block_hash, 0), until_s if lease_s else 0
            )

    def _is_named(self, node: NodeId, tier: str, block_hash: BlockHash) -> bool:
        return tier == "dram" and self.named_until_s.get((node, block_hash), 0) > self.now_s

    def _free(self, place: Place, freed: list[BlockHash]) -> None:
        self.held[place] -= set(freed)
        for block_hash in freed if place[1] == "dram" else ():
            self.named_until_s.pop((place[0], block_hash), None)

    def _forget(self, node: NodeId) -> None:
        for place in [place for place in self.held if place[0] == node]:
            self._free(place, list(self.held[place]))
            del self.held[place]


TestDirectoryMachine = DirectoryMachine.TestCase
TestDirectoryMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class DepthAwareMachine(DirectoryMachine):
    """With heat, and the order that looks at all columns."""

    policy = "depth"


TestDepthAwareMachine = DepthAwareMachine.TestCase
TestDepthAwareMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(chains, lengths, st.sampled_from([0.1, 30.0, 2000.0]), st.integers(0, 900)),
        min_size=5,
        max_size=40,
    )
)
def test_no_policy_takes_a_block_before_those_that_follow_it(
    policy: str, steps: list[tuple[list[BlockHash], int, float, int]]
) -> None:
    made = Directory(POLICIES[policy])
    made.add_node(N0, H0, region())
    now_s, held = 0.0, set[BlockHash]()
    for hashes, count, wait_s, num_bytes in steps:
        now_s += wait_s
        found = matched(made, hashes[:count], now_s=now_s, lease_s=0.05)
        made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)[len(found) : count]), now_s=now_s)
        held.update(hashes[:count])
        now_s += 1.1
        for victim in made.victims(N0, num_bytes, now_s=now_s):
            parents = {block.meta.parent for h in held if (block := BLOCK_BY_HASH[h])}
            assert victim not in parents
            made.record_freed(N0, [victim])
            held.remove(victim)
        made.check_invariants()


def heat_directory(policy: str = "lfu") -> Directory:
    made = Directory(POLICIES[policy])
    made.add_node(N0, H0, region())
    return made


def test_lfu_keeps_what_is_used_often_over_what_was_used_last() -> None:
    made = heat_directory()
    often, once = chain(1), chain(2)
    for now_s in range(5):
        made.match(often, now_s=now_s, lease_s=0.1)
        made.record_sealed(N0, SealedBlocks.pack(sealed(often)), now_s=now_s)
    made.record_sealed(N0, SealedBlocks.pack(sealed(once)), now_s=9)
    assert made.victims(N0, 6 * LENGTH, now_s=10) == list(reversed(once))


def test_lfu_lets_go_of_what_was_hot_long_ago() -> None:
    made = heat_directory()
    hot, new = chain(1), chain(2)
    made.record_sealed(N0, SealedBlocks.pack(sealed(hot)), now_s=0)
    for now_s in range(1, 20):
        made.match(hot, now_s=now_s, lease_s=0.1)
    later_s = 20 + 5 * HALF_LIFE_S
    made.record_sealed(N0, SealedBlocks.pack(sealed(new)), now_s=later_s)
    assert made.victims(N0, 6 * LENGTH, now_s=later_s + 1) == list(reversed(hot))


def test_a_block_that_comes_back_is_as_hot_as_it_was() -> None:
    made = heat_directory()
    back, other = chain(1), chain(2)
    made.record_sealed(N0, SealedBlocks.pack(sealed(back)), now_s=0)
    for now_s in range(1, 5):
        made.match(back, now_s=now_s, lease_s=0.1)
    made.record_freed(N0, back)
    made.record_sealed(N0, SealedBlocks.pack(sealed(back)), now_s=10)
    made.record_sealed(N0, SealedBlocks.pack(sealed(other)), now_s=20)
    made.match(other, now_s=21, lease_s=0.1)
    assert made.victims(N0, 6 * LENGTH, now_s=22) == list(reversed(other))


def test_heat_lasts_for_weeks_without_overflow() -> None:
    made = heat_directory()
    hashes, idle = chain(1), chain(2)
    made.record_sealed(N0, SealedBlocks.pack(sealed(idle)), now_s=0)
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)), now_s=0)
    for day in range(60):
        made.match(hashes, now_s=day * 86_400.0, lease_s=0.1)
        made.check_invariants()
    assert made.heat is not None
    assert np.isfinite(made.heat.column()).all()
    assert made.victims(N0, LENGTH, now_s=1e7) == [idle[5]]


def test_the_depth_aware_order_gives_up_long_ends_first() -> None:
    made = heat_directory("depth")
    short, long = chain(1, 2), chain(2, 400)
    made.record_sealed(N0, SealedBlocks.pack(sealed(short)), now_s=10)
    made.record_sealed(N0, SealedBlocks.pack(sealed(long)), now_s=12)
    assert made.victims(N0, 3 * LENGTH, now_s=13) == [long[399], long[398], long[397]]


def test_victims_go_from_the_end_of_the_oldest_prefix() -> None:
    made = directory()
    old, new = chain(1), chain(2)
    made.record_sealed(N0, SealedBlocks.pack(sealed(old)), now_s=1)
    made.record_sealed(N0, SealedBlocks.pack(sealed(new)), now_s=2)
    assert made.victims(N0, 3 * LENGTH, now_s=3) == [old[5], old[4], old[3]]


def test_parent_outlives_a_child_that_is_in_use() -> None:
    made = directory()
    hashes, other = chain(1), chain(2)
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)), now_s=1)
    made.record_sealed(N0, SealedBlocks.pack(sealed(other)), now_s=2)
    made.locate([hashes[5]], now_s=3, lease_s=0.5)
    victims = made.victims(N0, 12 * LENGTH, now_s=4)
    assert victims == [*reversed(other), *reversed(hashes)]


def test_what_is_written_to_a_lower_tier_is_no_more_recent_for_it() -> None:
    made = directory()
    made.add_tier(N0, "ssd")
    old, new = chain(1), chain(2)
    made.record_sealed(N0, SealedBlocks.pack(sealed(old)), now_s=1)
    made.record_sealed(N0, SealedBlocks.pack(sealed(new)), now_s=2)
    made.record_sealed(N0, SealedBlocks.pack(sealed(old)[5:]), now_s=3, tier="ssd")
    made.record_freed(N0, old[5:])
    assert made.victims(N0, 5 * LENGTH, now_s=4) == list(reversed(old[:5]))
    assert made.victims(N0, LENGTH, now_s=4, tier="ssd") == [old[5]]


def test_a_copy_that_one_report_names_twice_is_one_and_where_it_was_said_last() -> None:
    made, blocks = directory(N0, N1), sealed(CHAINS[0])
    made.record_sealed(N0, SealedBlocks.pack(blocks), now_s=0)
    again = [msgspec.structs.replace(block, offset=block.offset + 10_000) for block in blocks]
    mixed = SealedBlocks.pack([*blocks[2:], *sealed(CHAINS[1]), *again[4:], *blocks[:1]])
    new = made.record_sealed(N1, mixed, now_s=5)
    assert new.hashes() == [*CHAINS[1], *CHAINS[0][2:], CHAINS[0][0]]
    assert made.num_blocks_on(N1, "dram") == 11
    on_n1 = [
        each.offset
        for replicas in made.locate(CHAINS[0], now_s=5, lease_s=0).unpack()
        for each in replicas
        if each.node == N1
    ]
    assert on_n1 == [0, 200, 300, 10_400, 10_500]
    used_s = made.leases.used_s.values[made.blocks.find_all(CHAINS[0])]
    assert used_s.tolist() == [5] * 6, "also of the one whose followers were copied"


def test_frees_that_are_repeated_unknown_or_of_another_node_take_nothing_else_along() -> None:
    made, (hashes, others) = directory(N0, N1), CHAINS[:2]
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)), now_s=1)
    made.record_sealed(N1, SealedBlocks.pack(sealed(hashes)[:2] + sealed(others)), now_s=1)
    told = [hashes[0], hashes[4], others[1], hashes[4], CHAINS[2][0], hashes[0], hashes[5]]
    assert made.record_freed(N0, told) == [hashes[0], hashes[4], hashes[5]]
    made.check_invariants()
    assert made.num_blocks_on(N0) == 3
    assert len(matched(made, others, now_s=2, lease_s=0)) == 6
    first, *_ = matched(made, hashes, now_s=2, lease_s=0)
    assert first.node == N1
    assert made.record_freed(N1, [hashes[0], hashes[0]]) == [hashes[0]]
    assert matched(made, hashes, now_s=2, lease_s=0) == []
    made.check_invariants()


def test_a_report_that_names_a_new_block_twice_leaves_no_row_in_use_for_it() -> None:
    made, blocks = directory(), sealed(CHAINS[0])
    twice = SealedBlocks.pack([*blocks, *blocks[2:4]])
    made.record_sealed(N0, twice, now_s=1)
    made.check_invariants()
    assert made.num_blocks_on(N0) == len(made.blocks) == 6
    made.record_freed(N0, CHAINS[0])
    made.record_sealed(N0, SealedBlocks.pack(sealed(CHAINS[1] + CHAINS[2])), now_s=2)
    made.check_invariants()
    assert len(made.blocks) == 12


def test_a_prefix_starts_where_a_parent_is_not_the_block_before() -> None:
    blocks = sealed(CHAINS[0])[2:] + sealed(CHAINS[1]) + sealed(CHAINS[2])[3:4]
    assert SealedBlocks.pack(blocks).starts().tolist() == [0, 4, 10]
    assert SealedBlocks.pack([]).starts().tolist() == []


def test_child_sealed_late_keeps_its_parents() -> None:
    made = directory()
    hashes, other = chain(1), chain(2)
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)[:5]), now_s=1)
    made.record_sealed(N0, SealedBlocks.pack(sealed(other)), now_s=2)
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)[5:]), now_s=3)
    assert made.victims(N0, LENGTH * 6, now_s=4) == list(reversed(other))


def test_leased_blocks_are_never_victims() -> None:
    made = directory()
    hashes = chain(1)
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)), now_s=1)
    made.match(hashes[:4], now_s=2, lease_s=10)
    assert made.victims(N0, 10_000, now_s=3) == [hashes[5], hashes[4]]
    assert made.victims(N0, 10_000, now_s=13) == [hashes[5], hashes[4], *reversed(hashes[:4])]


def test_a_victim_is_named_once_a_second_and_counts_as_freed() -> None:
    made = directory()
    hashes = chain(1)
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)), now_s=1)
    assert made.victims(N0, 2 * LENGTH, now_s=2) == [hashes[5], hashes[4]]
    assert made.victims(N0, 2 * LENGTH, now_s=2.1) == []
    assert made.victims(N0, 3 * LENGTH, now_s=2.1) == [hashes[3]]
    made.record_freed(N0, [hashes[5]])
    assert made.victims(N0, 3 * LENGTH, now_s=2.2) == [hashes[2]]
    assert made.victims(N0, LENGTH, now_s=4) == [hashes[4]]


def test_a_named_victim_is_not_offered_to_readers() -> None:
    made = directory()
    hashes = chain(1)
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)), now_s=1)
    made.victims(N0, LENGTH, now_s=2)
    assert len(matched(made, hashes, now_s=2, lease_s=1)) == 5
    assert len(matched(made, hashes, now_s=2 + RENAME_AFTER_S, lease_s=1)) == 6


def test_idle_replicas_of_which_there_are_more_than_wanted_are_victims_first() -> None:
    made = directory(N0, N1)
    old, both = CHAINS[:2]
    made.record_sealed(N0, SealedBlocks.pack(sealed(old)), now_s=0)
    for node in (N0, N1):
        made.record_sealed(node, SealedBlocks.pack(sealed(both)), now_s=10)
    now_s = 10 + SURPLUS_IDLE_S
    assert made.victims(N0, LENGTH, now_s=now_s) == [old[-1]], "in use a moment ago"
    now_s += MAX_AGE_S
    assert made.victims(N0, 2 * LENGTH, now_s=now_s) == both[: -len(both) - 1 : -1][:2]
    now_s += MAX_AGE_S
    made.choice.default_wanted = 2
    assert made.victims(N0, LENGTH, now_s=now_s) == [old[-1]], "two are wanted of all"
    made.check_invariants()


def test_what_a_dropped_node_held_is_found_by_nobody_on_its_host_either() -> None:
    made = directory(N0, N1)
    hashes = chain(1)
    made.record_sealed(N1, SealedBlocks.pack(sealed(hashes)), now_s=0)
    made.drop_node(N1)
    assert matched(made, hashes, now_s=0, lease_s=0, near=HOSTS[N1]) == []
    assert len(made.find_prefix(hashes, now_s=0)) == 0


def test_victims_are_bounded_per_call() -> None:
    made = directory()
    made.record_sealed(N0, SealedBlocks.pack(sealed(chain(1))), now_s=1)
    assert len(made.victims(N0, 10_000, now_s=2, max_blocks=2)) == 2


def test_readers_prefer_their_host_and_nodes_that_are_not_suspect() -> None:
    made = directory(N0, N1)
    hashes = chain(1)
    for node in (N0, N1):
        made.record_sealed(node, SealedBlocks.pack(sealed(hashes)), now_s=1)

    def picked(near: HostId) -> set[NodeId]:
        return {loc.node for loc in matched(made, hashes, now_s=2, lease_s=0, near=near)}

    assert (picked(H0), picked(H1)) == ({N0}, {N1})
    made.set_suspect(N1, True)
    assert (picked(H0), picked(H1)) == ({N0}, {N0})
    made.set_suspect(N0, True)
    assert (picked(H0), picked(H1)) == ({N0}, {N1})


def test_leading_by_host_counts_unbroken_prefixes() -> None:
    made = directory(N0, N1)
    hashes = chain(1)
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)[:4]), now_s=1)
    made.record_sealed(N1, SealedBlocks.pack(sealed(hashes)[:2] + sealed(hashes)[3:]), now_s=1)
    rows = made.find_prefix(hashes, now_s=2)
    assert len(rows) == 6
    assert made.leading_by_host(rows, now_s=2) == {H0: 4, H1: 2}


@given(st.lists(st.sets(st.sampled_from([N0, N1, N2])), min_size=1, max_size=6))
def test_each_host_leads_as_far_as_it_holds_every_block(holders: list[set[NodeId]]) -> None:
    made, hashes = directory(N0, N1, N2), chain(1)
    for node in (N0, N1, N2):
        held = [b for b, nodes in zip(sealed(hashes), holders, strict=False) if node in nodes]
        made.record_sealed(node, SealedBlocks.pack(held), now_s=1)
    rows = made.find_prefix(hashes, now_s=2)
    plain: dict[HostId, int] = {}
    for host in (H0, H1):
        for nodes in holders[: len(rows)]:
            if host not in {HOSTS[node] for node in nodes}:
                break
            plain[host] = plain.get(host, 0) + 1
    assert made.leading_by_host(rows, now_s=2) == plain


def test_looking_changes_neither_recency_nor_counts() -> None:
    made = directory()
    hashes, other = chain(1), chain(2)
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)), now_s=1)
    made.record_sealed(N0, SealedBlocks.pack(sealed(other)), now_s=2)
    made.match(hashes, now_s=3, lease_s=0)
    made.locate(hashes, now_s=3, lease_s=0)
    assert made.lookups.num_lookups == 0
    assert made.victims(N0, LENGTH, now_s=4) == [hashes[5]]


def test_dropped_node_is_gone_at_once_and_its_return_starts_empty() -> None:
    made = directory()
    hashes = chain(1)
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)), now_s=1)
    assert made.drop_node(N0) == 6
    assert matched(made, hashes, now_s=2, lease_s=1) == []
    assert total(made, now_s=2).num_blocks == 0
    made.add_node(N0, H0, region())
    made.record_sealed(N0, SealedBlocks.pack(sealed(hashes)[:2]), now_s=3)
    swept = [pairs(made.sweep(1)) for _ in range(6)]
    assert sorted(block for batch in swept for _, block in batch) == sorted(hashes[2:])
    assert len(matched(made, hashes, now_s=4, lease_s=1)) == 2
    assert made.sweep(100) == {}
    made.check_invariants()


@pytest.mark.parametrize(
    "change",
    [{"offset": 1 << 62}, {"length": 1 << 63}, {"num_layers": 1 << 31}, {"trailer_bytes": 1 << 31}],
)
def test_a_report_with_a_bad_number_is_refused_whole(change: dict[str, int]) -> None:
    made = directory()
    blocks = sealed(chain(1))
    blocks[4] = msgspec.structs.replace(blocks[4], **change)
    with pytest.raises(ProtocolError):
        made.record_sealed(N0, SealedBlocks.pack(blocks), now_s=1)
    assert len(made.blocks) == 0
    made.check_invariants()


def test_filters_select_by_model_tenant_age_prefix_and_node() -> None:
    made = directory(N0, N1)
    a, b = chain(1), chain(2)
    made.record_sealed(N0, SealedBlocks.pack(sealed(a, model="ma", tenant="t")), now_s=1)
    made.record_sealed(N1, SealedBlocks.pack(sealed(b, model="mb")), now_s=50)

    def count(**wanted: object) -> int:
        found, _ = list_blocks(
            made,
            BlockFilter(**wanted),  # type: ignore[arg-type]
            after=None,
            limit=100,
            now_s=60,
        )
        return len(found)

    assert count(model="ma") == 6
    assert count(model="none") == 0
    assert count(tenant="t") == 6
    assert count(tenant="") == 6
    assert count(older_than_s=20) == 6
    assert count(node=N1) == 6
    assert count(node=N1, model="ma") == 0
    assert count(node=NodeId("unknown")) == 0
    assert count(hash_prefix=a[2].hex()) == 1
    assert count(hash_prefix=a[2].hex()[:1]) >= 1
    for bad in ("zz", "0" * 33, "-1"):
        with pytest.raises(Rejected):
            count(hash_prefix=bad)


def test_pages_end_although_their_last_block_was_freed() -> None:
    made = directory()
    for seed in range(10):
        made.record_sealed(N0, SealedBlocks.pack(sealed(chain(seed))), now_s=1)
    seen: list[BlockHash] = []
    after = None
    while True:
        page, has_more = list_blocks(made, BlockFilter(), after=after, limit=7, now_s=2)
        seen += [block.meta.hash for block in page]
        after = page[-1].meta.hash
        made.record_freed(N0, [after])
        if not has_more:
            break
    assert seen == sorted(h for seed in range(10) for h in chain(seed))


def test_kinds_are_forgotten_with_their_last_block() -> None:
    made = directory()
    for tenant in range(50):
        hashes = chain(tenant)
        made.record_sealed(N0, SealedBlocks.pack(sealed(hashes, tenant=f"t{tenant}")), now_s=1)
        made.record_freed(N0, hashes)
    assert len(made.blocks.kinds) == 1
    assert len(made.blocks.kind) == 1024
