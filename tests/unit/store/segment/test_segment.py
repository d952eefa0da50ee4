from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemons.config.segment_cut import SLOT_ALIGN, default_slab_bytes
from daemons.core.errors import Exhausted
from daemons.core.units import MIB
from daemons.store.segment.segment import Segment, SlabAllocator
from daemons.transfer import reopen_shared

SLAB = 64 * 1024


class AllocatorMachine(RuleBasedStateMachine):
    """Against a plain dict of what is allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlabAllocator(5 * SLAB + 3 * SLOT_ALIGN, SLAB)
        self.model: dict[int, int] = {}

    @rule(length=st.sampled_from([1, 4096, 4097, 9000, 20_000, SLAB, SLAB + 1]))
    def allocate(self, length: int) -> None:
        try:
            offset = self.slots.allocate(length)
        except Exhausted:
            return
        assert all(
            offset + length <= other or other + size <= offset for other, size in self.model.items()
        )
        assert offset % SLOT_ALIGN == 0
        assert offset + length <= self.slots.capacity_bytes
        self.model[offset] = length

    @rule(length=st.sampled_from([1, 4097, 9000, 20_000]))
    def allocate_roomy(self, length: int) -> None:
        try:
            offset = self.slots.allocate_roomy(length)
        except Exhausted:
            return
        assert all(
            offset + length <= other or other + size <= offset for other, size in self.model.items()
        )
        assert self.slots.is_roomy(offset)
        self.model[offset] = length

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.model)))
        del self.model[offset]
        self.slots.free(offset)

    @invariant()
    def books_balance(self) -> None:
        self.slots.check_invariants()
        assert self.slots.num_allocated == len(self.model)
        assert self.slots.used_bytes >= sum(self.model.values())
        assert self.slots.used_bytes <= self.slots.usable_bytes <= self.slots.capacity_bytes


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def fill(slots: SlabAllocator, length: int) -> list[int]:
    offsets = []
    while True:
        try:
            offsets.append(slots.allocate(length))
        except Exhausted:
            return offsets


def test_a_roomy_slot_is_the_smallest_free_one_that_is_larger() -> None:
    slots = SlabAllocator(2 * SLAB, SLAB)
    large, middle = slots.allocate(SLAB), slots.allocate(20_000)
    with pytest.raises(Exhausted, match="no slot of"):
        slots.allocate(4096)
    slots.free(large)
    slots.allocate(30_000)
    guest = slots.allocate_roomy(4096)
    assert slots.slab_of(guest) == slots.slab_of(middle)
    assert slots.is_roomy(guest)
    assert not slots.is_roomy(middle)
    with pytest.raises(Exhausted):
        slots.allocate_roomy(SLAB)


def test_blocks_of_one_class_lie_at_a_constant_stride() -> None:
    offsets = fill(SlabAllocator(SLAB, SLAB), 5000)
    assert offsets == list(range(0, 8 * 8192, 8192))


def test_full_means_used_equals_usable() -> None:
    slots = SlabAllocator(4 * SLAB, SLAB)
    fill(slots, 20_000)
    assert slots.used_bytes == slots.usable_bytes < slots.capacity_bytes


def test_an_empty_slab_serves_another_class() -> None:
    slots = SlabAllocator(2 * SLAB, SLAB)
    small = fill(slots, 4096)
    with pytest.raises(Exhausted, match=r"no slot of 9.8 KiB: 128.0 KiB of 128.0 KiB used"):
        slots.allocate(10_000)
    for offset in small[:16]:
        slots.free(offset)
    assert len(fill(slots, 10_000)) == 5


def test_a_block_larger_than_a_slab_says_what_to_do() -> None:
    with pytest.raises(Exhausted, match="lend a larger segment"):
        SlabAllocator(2 * SLAB, SLAB).allocate(SLAB + 1)


def test_freeing_twice_is_a_bug() -> None:
    slots = SlabAllocator(SLAB, SLAB)
    offset = slots.allocate(1)
    slots.free(offset)
    with pytest.raises(AssertionError):
        slots.free(offset)


@pytest.mark.parametrize(
    ("capacity", "slab"), [(16 * MIB, 4 * MIB), (1024 * MIB, 64 * MIB), (1 << 40, 256 * MIB)]
)
def test_slabs_are_a_fraction_of_the_segment(capacity: int, slab: int) -> None:
    assert default_slab_bytes(capacity) == slab


def test_segment_is_a_file_that_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    segment = Segment.create(4 * MIB + 5, path)
    assert segment.array.nbytes == 4 * MIB
    segment.array[segment.allocate(100)] = 1
    segment.close()
    assert not path.exists()


@given(
    lengths=st.lists(st.sampled_from([1, 4096, 9000, 20_000, SLAB]), max_size=30),
    freed=st.sets(st.integers(0, 29)),
)
def test_restored_slots_are_as_they_were(lengths: list[int], freed: set[int]) -> None:
    before, after = (SlabAllocator(5 * SLAB + 3 * SLOT_ALIGN, SLAB) for _ in range(2))
    held: dict[int, int] = {}
    for number, length in enumerate(lengths):
        try:
            offset = before.allocate(length)
        except Exhausted:
            continue
        if number in freed:
            before.free(offset)
        else:
            held[offset] = length
    assert all(after.restore(held.items()))
    after.check_invariants()
    assert (after.used_bytes, after.usable_bytes) == (before.used_bytes, before.usable_bytes)
    taken = fill(after, 4096)
    assert not set(taken) & held.keys()
    for offset in [*taken, *held]:
        after.free(offset)
    after.check_invariants()
    assert after.used_bytes == 0


def test_what_can_be_no_slot_is_not_restored() -> None:
    slots = SlabAllocator(2 * SLAB, SLAB)
    wanted = [
        (0, 8192),
        (0, 8192),  # taken
        (4096, 4096),  # in the first one
        (16384, 4096),  # of another class
        (-8192, 8192),
        (2 * SLAB, 8192),
        (SLAB + 100, 100),
        (SLAB, SLAB + 1),
        (SLAB, SLAB),
    ]
    assert slots.restore(wanted) == [True, *[False] * 7, True]
    slots.check_invariants()


def test_segment_that_is_kept_is_there_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "a.segment"
    segment = Segment.create(8 * MIB, path)
    segment.memory.is_kept = True
    segment.array[100] = 7
    segment.close()
    memory = reopen_shared(path, 8 * MIB)
    assert memory is not None
    assert memory.array[100] == 7
    Segment(memory).close()
    assert not path.exists()
