"""Slots of decode instances: their least end and their sum of context follow whatever comes and goes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.conductor.decode_slots import MAX_SLOTS, DecodeSlots

ROWS = 3
steps = st.lists(
    st.tuples(st.integers(0, ROWS - 1), st.integers(0, 11), st.floats(1, 99), st.integers(1, 999)),
    max_size=40,
)


@settings(max_examples=50, deadline=None)
@given(steps)
def test_least_and_sum_of_each_row_are_those_of_what_is_there(
    taken: list[tuple[int, int, float, int]],
) -> None:
    slots = DecodeSlots(ROWS)
    held: dict[tuple[int, int], tuple[float, int]] = {}
    for row, slot, end_s, num_tokens in taken:
        if (row, slot) in held:
            slots.free(row, slot)
            del held[row, slot]
        else:
            assert slots.has_room(slot)
            slots.take(row, slot, begin_s=0.0, end_s=end_s, num_tokens=num_tokens)
            held[row, slot] = end_s, num_tokens
        slots.check_invariants()
    for row in range(ROWS):
        mine = [value for (at, _), value in held.items() if at == row]
        assert slots.first_end_s[row] == min((end_s for end_s, _ in mine), default=np.inf)
        assert slots.all_context_tokens[row] == sum(num_tokens for _, num_tokens in mine)


def test_there_is_room_for_so_many_and_no_more_whatever_rows_are_added() -> None:
    slots = DecodeSlots(1)
    assert slots.has_room(MAX_SLOTS - 1)
    assert not slots.has_room(MAX_SLOTS)
    slots.take(0, MAX_SLOTS - 1, begin_s=1.0, end_s=2.0, num_tokens=5)
    slots.add_rows(2)
    slots.check_invariants()
    assert slots.first_end_s.tolist() == [2.0, np.inf, np.inf]
    slots.clear(0)
    slots.check_invariants()
    assert slots.first_end_s.tolist() == [np.inf] * 3
    assert not slots.all_context_tokens.any()
