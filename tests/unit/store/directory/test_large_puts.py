"""Whose turn it is to put a large value, and what happens to those that are not heard of any more."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from daemons.core.ids import BlockHash
from daemons.store.directory.large_puts import PATIENCE_S, EndedPut, LargePuts, WaitsFor

A, B, C, D = (BlockHash(bytes([number]) * 16) for number in range(1, 5))
ROOM = 100
HOLD_S = 5


def begin(
    puts: LargePuts, key: BlockHash, num_bytes: int, *, now_s: float = 0.0, hold_s: float = 20.0
) -> WaitsFor | None:
    """As the master does for a client that asks: it holds room, or waits."""
    waits = puts.may_begin(key, num_bytes, room_bytes=ROOM, now_s=now_s)
    if waits is None:
        puts.hold(key, 1, num_bytes, until_s=now_s + hold_s)
    else:
        puts.wait(key, now_s=now_s)
    return waits


def test_those_that_fit_together_are_put_at_once() -> None:
    puts = LargePuts()
    assert begin(puts, A, 50) is None
    assert begin(puts, B, 50) is None
    assert begin(puts, C, 1) == WaitsFor(num_held=2, held_bytes=100, num_before=0)
    puts.end_up_to(A, 1)
    assert begin(puts, C, 1) is None


def test_one_alone_begins_whatever_its_size() -> None:
    puts = LargePuts()
    assert begin(puts, A, ROOM + 1) is None
    assert begin(puts, B, 1) is not None
    assert puts.end(A, 1) == ROOM + 1
    assert begin(puts, B, 1) is None


def test_nobody_overtakes_one_that_waits() -> None:
    puts = LargePuts()
    begin(puts, A, 60)
    assert begin(puts, B, 60) == WaitsFor(1, 60, num_before=0)
    assert begin(puts, C, 10) == WaitsFor(1, 60, num_before=1), "it would fit"
    puts.end_up_to(A, 1)
    assert begin(puts, C, 10) == WaitsFor(0, 0, num_before=1)
    assert begin(puts, B, 60) is None
    assert begin(puts, C, 10) is None


def test_who_stops_asking_loses_its_place() -> None:
    puts = LargePuts()
    begin(puts, A, 60)
    begin(puts, B, 60)
    begin(puts, C, 10, now_s=0.1)
    gone_s = PATIENCE_S + 0.1
    assert begin(puts, C, 10, now_s=gone_s) is None
    assert begin(puts, B, 60, now_s=gone_s) == WaitsFor(2, 70, num_before=0), "it comes back last"
    assert puts.num_waiting == 1


def test_one_that_is_not_heard_of_holds_its_room_no_longer_than_its_hold() -> None:
    puts = LargePuts()
    begin(puts, A, 60, hold_s=5.0)
    puts.hold(A, 1, 60, until_s=8.0)
    assert puts.expire(7.9) == []
    assert puts.expire(8.0) == [EndedPut(A, 1, 60)]
    assert puts.is_over(A, 1)
    assert not puts.is_over(A, 2)
    assert begin(puts, B, 60, now_s=8.0) is None


def test_a_stall_of_the_master_ends_no_hold_and_costs_no_place() -> None:
    puts = LargePuts()
    begin(puts, A, 60, hold_s=5.0)
    begin(puts, B, 60, now_s=1.0)
    puts.extend(30.0, now_s=31.0)
    assert puts.expire(31.0) == []
    assert begin(puts, C, 1, now_s=31.0) == WaitsFor(1, 60, num_before=1)


def test_a_version_that_is_replaced_holds_its_room_until_a_later_one_is_sealed() -> None:
    puts = LargePuts()
    puts.hold(A, 1, 60, until_s=20.0)
    puts.hold(A, 2, 60, until_s=20.0)
    assert begin(puts, B, 1) == WaitsFor(2, 120, num_before=0)
    puts.end_up_to(A, 1)
    assert puts
    puts.end_up_to(A, 2)
    assert not puts
    assert puts.end(A, 2) == 0


class Machine(RuleBasedStateMachine):
    """Of those that ask all along everyone gets its turn, in the order they came."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = LargePuts()
        self.now_s = 0.0
        self.version = 0
        self.asking: dict[BlockHash, int] = {}

    @rule(key=st.sampled_from([A, B, C, D]), num_bytes=st.integers(1, 150))
    def come(self, key: BlockHash, num_bytes: int) -> None:
        self.asking.setdefault(key, num_bytes)
        self.ask_all()

    @rule(seconds=st.floats(0.0, PATIENCE_S), count=st.integers(1, 20))
    def pass_time(self, seconds: float, count: int) -> None:
        for _ in range(count):
            self.now_s += seconds
            self.puts.expire(self.now_s)
            self.ask_all()

    @rule(key=st.sampled_from([A, B, C, D]), version=st.integers(1, 20))
    def seal(self, key: BlockHash, version: int) -> None:
        self.puts.end_up_to(key, version)
        self.ask_all()

    def ask_all(self) -> None:
        """In an order of their own; the first to get a turn is the one that came first."""
        for key in sorted(self.asking):
            num_bytes = self.asking[key]
            waits = self.puts.may_begin(key, num_bytes, room_bytes=ROOM, now_s=self.now_s)
            if waits is not None:
                self.puts.wait(key, now_s=self.now_s)
                continue
            assert key == next(iter(self.asking)), "it overtook another"
            self.version += 1
            self.puts.hold(key, self.version, num_bytes, until_s=self.now_s + HOLD_S)
            del self.asking[key]

    @invariant()
    def is_sound(self) -> None:
        self.puts.check_invariants()
        if not self.puts:
            assert len(self.asking) <= self.puts.num_waiting

    def teardown(self) -> None:
        """Nothing is heard of those that are put, so their holds end."""
        for _ in range(2 * HOLD_S * len(self.asking)):
            self.now_s += PATIENCE_S / 2
            self.puts.expire(self.now_s)
            self.ask_all()
        assert not self.asking, "everyone had its turn"


class TestMachine(Machine.TestCase):  # type: ignore[name-defined,misc]  # made by hypothesis
    settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
