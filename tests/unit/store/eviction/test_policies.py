"""Choices against a plain sort."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daemons.store.eviction.policies import POLICIES, EvictionCandidates

rows = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(1, 1000)), max_size=200
)


@given(rows=rows, wanted=st.integers(-5, 60_000))
def test_lru_takes_just_enough_of_the_oldest_and_deepest(
    rows: list[tuple[int, int, int]], wanted: int
) -> None:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    candidates = EvictionCandidates(
        used_s=np.array(columns[0], np.float64),
        depth=np.array(columns[1], np.uint32),
        num_bytes=np.array(columns[2], np.uint64),
    )
    chosen = POLICIES["lru"].choose(candidates, wanted).tolist()
    expected, freed = [], 0
    for used, depth, num_bytes in sorted(rows, key=lambda row: (row[0], -row[1])):
        if freed >= wanted:
            break
        expected.append((used, depth))
        freed += num_bytes
    assert len(chosen) == len(set(chosen))
    assert sorted((rows[i][0], -rows[i][1]) for i in chosen) == [
        (rows[i][0], -rows[i][1]) for i in chosen
    ]
    got = sum(rows[i][2] for i in chosen)
    assert got >= min(max(wanted, 0), sum(row[2] for row in rows))
    assert got - (rows[chosen[-1]][2] if chosen else 0) < max(wanted, 1)
    if len({row[2] for row in rows}) == 1:
        assert [(rows[i][0], rows[i][1]) for i in chosen] == expected


def test_many_candidates_are_not_all_sorted_yet_the_choice_is_the_oldest() -> None:
    used = np.random.default_rng(1).permutation(100_000).astype(np.float64)
    candidates = EvictionCandidates(
        used_s=used, depth=np.zeros(100_000, np.uint32), num_bytes=np.full(100_000, 10, np.uint64)
    )
    chosen = POLICIES["lru"].choose(candidates, 5000)
    assert used[chosen].tolist() == list(range(500))
