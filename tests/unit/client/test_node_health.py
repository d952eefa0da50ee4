"""Which replica is asked first, how long one may be silent, and that a node that is back is asked again."""

import pytest

from daemons.client.node_health import PATIENT_S, NodeHealth
from daemons.core.errors import Unavailable
from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.transfer import NoTurn

HEDGE_S = 0.1


def replica(node: str, epoch: int = 1) -> BlockLocation:
    address = DataAddress(host_id=HostId("h"), unix_path="", tcp="", epoch=Epoch(epoch))
    return BlockLocation(
        hash=BlockHash(b"h" * 16),
        node=NodeId(node),
        region=RegionRef(address=address, region_id=1, size_bytes=1),
        offset=0,
        length=1,
        trailer_bytes=1,
        version=1,
        seal_checksum=1,
        num_layers=1,
    )


class Bench:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.told: list[str] = []
        self.health = NodeHealth(
            hedge_s=HEDGE_S,
            on_suspect=lambda at, _: self.told.append(at.node),
            clock=lambda: self.now_s,
        )
        self.silent: set[str] = set()
        self.empty: set[str] = set()
        self.asked: list[tuple[str, float]] = []

    def attempt(self, at: BlockLocation, silent_s: float) -> str | None:
        self.asked.append((at.node, silent_s))
        if at.node in self.silent:
            self.now_s += silent_s
            raise Unavailable(f"{at.node} is silent")
        return None if at.node in self.empty else at.node

    def get(self, *nodes: str) -> str | None:
        self.asked.clear()
        return self.health.first([replica(n) for n in nodes], self.attempt, timeout_s=10.0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_silent_replica_costs_one_hedge_and_the_next_reads_avoid_it(bench: Bench) -> None:
    bench.silent = {"a"}
    assert bench.get("a", "b") == "b"
    assert bench.now_s == pytest.approx(100.0 + HEDGE_S)
    assert bench.told == ["a"]
    assert bench.get("a", "b") == "b"
    assert [node for node, _ in bench.asked] == ["b"]


def test_a_node_that_is_back_is_found_by_one_read_after_a_pause(bench: Bench) -> None:
    bench.silent = {"a"}
    bench.get("a", "b")
    bench.now_s += 0.6
    bench.get("a", "b")
    assert bench.asked[0][0] == "a", "the pause is over: one read finds out"
    bench.get("a", "b")
    assert bench.asked[0][0] == "b", "it failed again, and the pause is longer"
    bench.silent.clear()
    bench.now_s += 2.0
    assert bench.get("a", "b") == "a"
    assert bench.get("a", "b") == "a"


def test_only_one_read_at_a_time_finds_out(bench: Bench) -> None:
    at = replica("a")
    bench.health.failed(at, Unavailable("gone"))
    bench.now_s += 0.6
    assert [bench.health.is_suspect(at) for _ in range(3)] == [False, True, True]


def test_a_node_is_not_blamed_for_our_own_queue(bench: Bench) -> None:
    bench.health.failed(replica("a"), NoTurn("all connections are in use"))
    assert not bench.health.is_suspect(replica("a"))
    assert bench.told == []


def test_a_new_life_of_a_node_is_in_good_standing(bench: Bench) -> None:
    bench.health.failed(replica("a"), Unavailable("gone"))
    assert bench.health.is_suspect(replica("a"))
    assert not bench.health.is_suspect(replica("a", epoch=2))


def test_all_replicas_slow_are_asked_again_with_patience(bench: Bench) -> None:
    slow = {"a": 2, "b": 2}

    def attempt(at: BlockLocation, silent_s: float) -> str | None:
        slow[at.node] -= 1
        if slow[at.node] > 0 or silent_s < 1.0:
            raise Unavailable("slow")
        return at.node

    replicas = [replica("a"), replica("b")]
    assert bench.health.first(replicas, attempt, timeout_s=10.0) == "a"


def test_the_only_replica_gets_patience_but_not_while_it_is_suspect(bench: Bench) -> None:
    bench.silent = {"a"}
    with pytest.raises(Unavailable):
        bench.get("a")
    assert bench.asked == [("a", PATIENT_S)]
    with pytest.raises(Unavailable):
        bench.get("a")
    assert bench.asked == [("a", HEDGE_S)]


def test_bytes_that_are_wrong_everywhere_are_a_miss_and_no_error(bench: Bench) -> None:
    bench.empty = {"a", "b"}
    assert bench.get("a", "b") is None
    bench.silent = {"a"}
    assert bench.get("b", "c") == "c"
    assert bench.get() is None


def test_time_that_is_over_ends_it(bench: Bench) -> None:
    bench.silent = {"a", "b", "c"}
    with pytest.raises(Unavailable):
        bench.health.first([replica(n) for n in "abc"], bench.attempt, timeout_s=0.25)
    assert bench.now_s <= 100.3
