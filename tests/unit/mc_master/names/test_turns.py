"""How much room large values may take at a time, and what one that waits is told."""

from types import SimpleNamespace
from typing import Any, cast

from daemons.core.clock import ManualClock
from daemons.core.ids import BlockHash
from daemons.core.units import MIB
from daemons.mc_master.names.turns import Turns
from daemons.mc_master.state import MasterState
from daemons.store.directory.directory import Directory
from daemons.store.directory.large_puts import LargePuts

A, B, C = (BlockHash(bytes([number]) * 16) for number in range(1, 4))


def member(capacity_mib: int, *, is_draining: bool = False, num_segments: int = 1) -> Any:
    """Of a node; three slabs of 4 MiB of it are kept for slots of other sizes."""
    segments = [SimpleNamespace(capacity_bytes=capacity_mib * MIB)] * num_segments
    node = SimpleNamespace(node="n", segments=segments)
    return SimpleNamespace(
        node=node, is_draining=is_draining, capacity_bytes=capacity_mib * MIB * num_segments
    )


class Bench:
    def __init__(self, *members: Any) -> None:
        self.clock = ManualClock(100.0)
        self.members = list(members)
        state = SimpleNamespace(now_s=self.clock, membership=self.members, directory=Directory())
        self.puts = LargePuts()
        self.turns = Turns(cast(MasterState, state), self.puts)

    def put(self, key: BlockHash, num_mib: int) -> str:
        """Why it waits; it has begun where that is empty."""
        waits = self.turns.waits(key, num_mib * MIB)
        if waits is None:
            self.turns.hold(key, 1, num_mib * MIB, 20.0)
            return ""
        assert waits.status == "waits_for_room"
        self.turns.queue(key)
        return waits.why


def test_nodes_that_take_no_values_make_no_room() -> None:
    bench = Bench(member(64), member(64, is_draining=True), member(64, num_segments=0))
    assert not bench.put(A, 40)
    assert not bench.put(B, 12)
    assert bench.put(C, 1) == (
        "other puts in progress (2) hold 52.0 MiB of the 52.0 MiB that large values may take at a time, "
        "and 0 wait before it"
    )


def test_a_node_that_joins_makes_room_for_the_next() -> None:
    bench = Bench(member(64))
    assert not bench.put(A, 40)
    assert bench.put(B, 40)
    bench.members.append(member(64))
    bench.clock.advance(1.0)
    assert not bench.put(B, 40)


def test_one_that_was_not_heard_of_is_lost_whatever_it_asks() -> None:
    bench = Bench(member(64))
    bench.put(A, 40)
    assert bench.turns.lost(A, 1) is None
    bench.puts.expire(bench.clock() + 20.0)
    lost = bench.turns.lost(A, 1)
    assert lost is not None
    assert lost.status == "lost"
    assert lost.why
