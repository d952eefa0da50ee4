"""What one look at the columns finds short or too many is what counting block by block finds."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import Directory
from daemons.store.directory.replica_counts import CountRules, count_replicas

NODES = [NodeId(f"n{number}") for number in range(5)]
DOMAINS = {NODES[0]: "r0", NODES[1]: "r0", NODES[2]: "r1", NODES[3]: "r2", NODES[4]: "r3"}
LENGTH = 1000


def region(node: NodeId) -> RegionRef:
    address = DataAddress(host_id=HostId(node), unix_path="", tcp="", epoch=Epoch(1))
    return RegionRef(address=address, region_id=1, size_bytes=1 << 30)


def name(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "big"))


def sealed(number: int, wanted: int = 0) -> SealedBlock:
    meta = BlockMeta(
        hash=name(number),
        parent=BlockHash(b"p" * 16),
        namespace=b"n",
        depth=0,
        num_tokens=1,
        model="m",
    )
    return SealedBlock(
        meta=meta,
        offset=0,
        length=LENGTH,
        trailer_bytes=8,
        version=1,
        seal_checksum=1,
        num_layers=1,
        wanted=wanted,
    )


@dataclass(frozen=True)
class Case:
    """Who holds each block, what it wants, and which nodes are not as they should be."""

    held: list[set[int]]
    wanted: list[int]
    away: set[int]
    gone: set[int]
    draining: set[int]
    num_domains: int
    default: int

    def directory(self) -> Directory:
        made = Directory()
        for node in NODES:
            made.add_node(node, HostId(node), region(node))
        for number, holders in enumerate(self.held):
            for holder in holders:
                made.record_sealed(
                    NODES[holder], SealedBlocks.pack([sealed(number, self.wanted[number])]), now_s=0
                )
        for node in self.away:
            made.keep_away(NODES[node])
        for node in self.gone:
            made.drop_node(NODES[node])
        return made

    def is_short(self, number: int) -> bool:
        holders = self.held[number]
        known = {DOMAINS[NODES[n]] for n in holders - self.gone - self.draining}
        asked = self.wanted[number] or self.default
        can_read = bool(holders - self.gone - self.away)
        return can_read and len(known) < min(asked, max(1, self.num_domains))

    def is_surplus(self, number: int) -> bool:
        there = self.held[number] - self.gone - self.draining - self.away
        asked = self.wanted[number] or self.default
        return asked > 1 and len({DOMAINS[NODES[n]] for n in there}) > asked


@st.composite
def cases(draw: st.DrawFn) -> Case:
    few = st.sets(st.integers(0, 4), max_size=2)
    held = draw(st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=12))
    away = draw(few)
    gone = draw(few) - away
    return Case(
        held=held,
        wanted=[draw(st.integers(0, 4)) for _ in held],
        away=away,
        gone=gone,
        draining=draw(few) - away - gone,
        num_domains=draw(st.integers(0, 4)),
        default=draw(st.integers(1, 3)),
    )


@settings(deadline=None, max_examples=100)
@given(cases(), st.booleans())
def test_counts_are_those_of_counting_one_by_one(case: Case, is_swept: bool) -> None:
    directory = case.directory()
    if is_swept:
        directory.sweep(1000)
    draining = frozenset(NODES[n] for n in case.draining)
    rules = CountRules(
        domains=DOMAINS, num_domains=case.num_domains, draining=draining, default=case.default
    )
    counts = count_replicas(directory, rules, limit=1000)
    numbers = range(len(case.held))
    short = {n for n in numbers if case.is_short(n)}
    saved = {n for n in short if case.held[n] & case.draining}
    assert set(counts.short) == {name(n) for n in short - saved}
    assert set(counts.only_draining) == {name(n) for n in saved}
    assert set(counts.surplus) == {name(n) for n in numbers if case.is_surplus(n)}
    for node in case.draining:
        count = sum(node in case.held[n] for n in short)
        assert counts.left[NODES[node]] == (count, count * LENGTH)
    directory.check_invariants()


def test_an_empty_directory_has_nothing_left() -> None:
    rules = CountRules(domains={}, num_domains=0, draining=frozenset(NODES[:1]), default=2)
    counts = count_replicas(Directory(), rules, limit=10)
    assert (counts.short, counts.surplus, counts.left) == ([], [], {NODES[0]: (0, 0)})


def test_what_is_kept_of_a_node_goes_once_it_is_let_go() -> None:
    directory = Directory()
    for node in NODES[:2]:
        directory.add_node(node, HostId(node), region(node))
        directory.record_sealed(node, SealedBlocks.pack([sealed(1)]), now_s=0)
    first = name(1)
    assert directory.keep_away(NODES[0]) == 1
    assert directory.sweep(100) == {}
    assert directory.kept_nodes(first) == {NODES[0]}
    assert [at.node for at in directory.locate([first], now_s=0, lease_s=0).unpack()[0]] == [
        NODES[1]
    ]
    directory.add_node(NODES[0], HostId(NODES[0]), region(NODES[0]))
    directory.let_go(NODES[0])
    assert directory.sweep(100) == {(NODES[0], "dram"): [first]}
    assert directory.kept_nodes(first) == set()
    directory.check_invariants()


def test_only_replicas_that_nobody_leases_are_given_up_and_only_once() -> None:
    directory = Directory()
    directory.add_node(NODES[0], HostId(NODES[0]), region(NODES[0]))
    directory.record_sealed(NODES[0], SealedBlocks.pack([sealed(1), sealed(2)]), now_s=0)
    first, second = name(1), name(2)
    directory.locate([first], now_s=1, lease_s=5)
    assert directory.give_up(NODES[0], [first, second], now_s=2) == [second]
    assert directory.give_up(NODES[0], [second], now_s=2) == []
    assert directory.locate([second], now_s=2, lease_s=0).unpack() == [[]]


def test_what_was_asked_for_outlives_a_later_report_and_ends_with_the_block() -> None:
    directory = Directory()
    directory.add_node(NODES[0], HostId(NODES[0]), region(NODES[0]))
    directory.record_sealed(NODES[0], SealedBlocks.pack([sealed(1, wanted=3)]), now_s=0)
    first = name(1)
    assert (directory.wanted_of(first), directory.blocks.num_wanted) == (3, 1)
    directory.record_sealed(NODES[0], SealedBlocks.pack([sealed(1, wanted=2)]), now_s=0)
    assert directory.wanted_of(first) == 3
    directory.record_freed(NODES[0], [first])
    assert (directory.wanted_of(first), directory.blocks.num_wanted) == (0, 0)
