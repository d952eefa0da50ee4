"""Prefixes that stay in the arena are found, shared, given up for room and told of, in any order of use."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemons.core.ids import BlockHash
from daemons.engine.arena.retained import ChainOf, Retained, RetainedSlots
from daemons.engine.arena.slots import Slot, SlotSpace
from daemons.engine.geometry import KvGeometry

GEOMETRY = KvGeometry(num_layers=1, num_kv_heads=1, head_dim=4, dtype="float32", block_tokens=64)
CHAIN = ChainOf(BlockHash(b"root"), "m", "")


class Told:
    """What others believe to be held."""

    def __init__(self) -> None:
        self.held: set[BlockHash] = set()

    def sealed(self, hashes: list[BlockHash]) -> None:
        assert not self.held & set(hashes), "told twice"
        self.held |= set(hashes)

    def freed(self, hashes: list[BlockHash]) -> None:
        assert self.held >= set(hashes), "never told"
        self.held -= set(hashes)


def chain(name: str, length: int, shared: int = 0) -> list[BlockHash]:
    """The first `shared` blocks are those of every chain."""
    return [BlockHash(f"{'' if i < shared else name}{i}".encode()) for i in range(length)]


class Arena:
    def __init__(self, limit_tokens: int = 1024, capacity: int = 2048) -> None:
        self.space = SlotSpace(GEOMETRY, capacity, Slot, num_sequences=16)
        self.told = Told()
        self.kept = RetainedSlots(limit_tokens, self.space.free, self.told)

    def add(self, hashes: list[BlockHash], num_tokens: int = 256) -> Retained:
        return self.kept.add(self.space.allocate(num_tokens), CHAIN, hashes, now_s=1.0)

    def idle(self, hashes: list[BlockHash], num_tokens: int = 256) -> Retained:
        entry = self.add(hashes, num_tokens)
        self.kept.let_go(entry)
        return entry


def test_the_longest_prefix_is_found_and_a_slot_with_nothing_else_preferred() -> None:
    arena = Arena()
    long, short = arena.add(chain("a", 4)), arena.idle(chain("b", 3, shared=2))
    found = arena.kept.find(chain("a", 3), 3)
    assert found is not None
    assert (found.entry, found.num_blocks, found.is_whole) == (long, 3, False)
    found = arena.kept.find(chain("b", 9, shared=2), 9)
    assert found is not None
    assert (found.entry, found.num_blocks, found.is_whole) == (short, 3, True)
    assert arena.kept.find(chain("c", 4), 4) is None
    assert arena.kept.find(chain("a", 4), 0) is None


def test_of_several_slots_the_idle_one_with_the_least_else_is_found() -> None:
    arena = Arena()
    arena.idle(chain("a", 4, shared=2))
    little = arena.idle(chain("b", 3, shared=2))
    arena.add(chain("c", 3, shared=2))
    found = arena.kept.find(chain("d", 4, shared=2), 4)
    assert found is not None
    assert (found.entry, found.num_blocks, found.is_whole) == (little, 2, False)


def test_what_is_idle_goes_the_least_recently_used_first_and_what_is_used_stays() -> None:
    arena = Arena(limit_tokens=512)
    first, second = arena.idle(chain("a", 4)), arena.idle(chain("b", 4))
    arena.kept.hold(first)
    arena.kept.let_go(first)
    third = arena.idle(chain("c", 4))  # one too many
    assert arena.told.held == set(chain("a", 4) + chain("c", 4))
    arena.kept.hold(third)
    assert arena.kept.give_up_oldest()
    assert not arena.kept.give_up_oldest()
    assert arena.told.held == set(chain("c", 4))
    assert second.hashes == []


def test_a_slot_whose_blocks_another_has_all_of_is_given_back() -> None:
    arena = Arena()
    arena.idle(chain("a", 2))
    whole = arena.add(chain("a", 4))
    assert (arena.space.num_live, arena.kept.num_idle) == (1, 0)
    arena.kept.let_go(whole)
    again = arena.add(chain("a", 4))
    arena.kept.let_go(again)
    assert (arena.space.num_live, arena.kept.num_idle) == (1, 1)
    assert arena.told.held == set(chain("a", 4))


def test_what_was_cleared_and_all_behind_it_is_held_no_more() -> None:
    arena = Arena()
    arena.idle(chain("a", 4, shared=2))
    busy = arena.add(chain("b", 4, shared=2))
    assert arena.kept.forget([chain("a", 4, shared=2)[3]]) == 1
    assert arena.told.held == set(chain("a", 3, shared=2) + chain("b", 4, shared=2))
    assert arena.kept.forget([chain("x", 1, shared=1)[0], BlockHash(b"unknown")]) == 1
    assert arena.told.held == set()
    assert arena.space.num_live == 1
    arena.kept.let_go(busy)
    assert arena.space.num_live == 0


def test_blocks_are_described_with_their_place_in_the_chain() -> None:
    arena = Arena()
    arena.idle(chain("a", 3))
    first, last = arena.kept.describe([chain("a", 3)[0], BlockHash(b"?"), chain("a", 3)[2]])
    assert (first.parent, first.depth, first.made_s) == (CHAIN.root, 0, 1.0)
    assert (last.parent, last.depth) == (chain("a", 3)[1], 2)


def test_letting_go_twice_is_a_bug() -> None:
    arena = Arena()
    entry = arena.idle(chain("a", 2))
    with pytest.raises(AssertionError, match="let go"):
        arena.kept.let_go(entry)


class RetainedMachine(RuleBasedStateMachine):
    """Any order of prompts, ends, clears and needs of room."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(limit_tokens=1024, capacity=4096)
        self.users: list[Retained] = []

    @rule(name=st.sampled_from("abc"), length=st.integers(1, 5), shared=st.integers(0, 3))
    def begin(self, name: str, length: int, shared: int) -> None:
        hashes = chain(name, length, shared)
        kept = self.arena.kept
        found = kept.find(hashes, length)
        if found is not None and found.entry.is_idle:
            kept.hold(found.entry)
            kept.cut(found.entry, found.num_blocks)
            kept.extend(found.entry, hashes, now_s=2.0)
            self.users.append(found.entry)
        elif len(self.users) < 10:
            self.users.append(self.arena.add(hashes))

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.arena.kept.let_go(self.users.pop(data.draw(st.integers(0, len(self.users) - 1))))

    @rule(name=st.sampled_from("abc"), at=st.integers(0, 4), shared=st.integers(0, 3))
    def clear(self, name: str, at: int, shared: int) -> None:
        gone = chain(name, at + 1, shared)[at]
        self.arena.kept.forget([gone])
        assert gone not in self.arena.told.held

    @rule()
    def need_room(self) -> None:
        num_idle = self.arena.kept.num_idle
        assert self.arena.kept.give_up_oldest() == bool(num_idle)

    @invariant()
    def told_is_held(self) -> None:
        self.arena.kept.check_invariants()
        self.arena.space.check_invariants()
        assert self.arena.told.held == set(self.arena.kept.hashes())
        used = {id(entry) for entry in self.users}
        assert self.arena.space.num_live == len(used) + self.arena.kept.num_idle


RetainedMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestRetained = RetainedMachine.TestCase
