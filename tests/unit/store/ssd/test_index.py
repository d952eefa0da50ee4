from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.store.ssd.made_blocks import key, make_block

from daemons.store.directory.columns import NO_ROW
from daemons.store.ssd.files import ALIGN
from daemons.store.ssd.index import BlockIndex, Location


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=120))
def test_it_agrees_with_a_dict(steps: list[tuple[bool, int]]) -> None:
    index = BlockIndex()
    model: dict[int, Location] = {}
    for turn, (is_put, number) in enumerate(steps):
        row = index.find(key(number))
        assert (row != NO_ROW) == (number in model)
        if is_put and row == NO_ROW:
            model[number] = Location(turn + 1, turn * ALIGN, turn)
            index.add(make_block(number, namespace=bytes([number % 3]))[0], model[number])
        elif not is_put and row != NO_ROW:
            index.remove(row)
            del model[number]
    index.check_invariants()
    for number, location in model.items():
        row = index.find(key(number))
        assert index.location(row) == location
        assert index.block(row) == make_block(number, namespace=bytes([number % 3]))[0]


def test_many_blocks_cost_little_and_are_found_after_growth() -> None:
    index = BlockIndex()
    block, _ = make_block(0)
    for number in range(20_000):
        meta = msgspec.structs.replace(block.meta, hash=key(number))
        index.add(replace(block, meta=meta), Location(1 + number // 100, 0, number))
    assert index.num_bytes() / len(index) < 125
    assert all(index.find(key(number)) != NO_ROW for number in range(0, 20_000, 7))
    assert index.find(key(20_001)) == NO_ROW
    assert len(index.rows_in_bucket(5)) == 100
    for number in range(0, 20_000, 2):
        index.remove(index.find(key(number)))
    assert all(index.find(key(n)) != NO_ROW for n in range(1, 20_000, 14))
    assert all(index.find(key(n)) == NO_ROW for n in range(0, 20_000, 14))
