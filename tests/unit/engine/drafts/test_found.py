import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.engine.drafts import found as drafts_module
from daemons.engine.drafts.found import LONG, SHORT, Drafter, NgramIndex

LENGTHS = (1, 3, 7, 15)


def latest(tokens: list[int]) -> tuple[int, int] | None:
    """What an index should find, by looking at everything."""
    for length in (LONG, SHORT):
        for at in range(len(tokens) - 1, LONG - 1, -1):
            if len(tokens) > LONG and tokens[at - length : at] == tokens[-length:]:
                return at, length
    return None


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=12))
def test_index_finds_the_latest_place_of_the_longest_match(pieces: list[list[int]]) -> None:
    index, tokens = NgramIndex(), list[int]()
    for piece in pieces:
        tokens += piece
        assert index.find(tokens) == latest(tokens)


def test_index_is_bounded_and_knows_what_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts_module, "MAX_INDEXED", 1000)
    index, tokens = NgramIndex(), list(range(10_000))
    for _ in range(40):
        index.find(tokens)
        assert len(index._seen) + len(index._seen_before) <= 4 * (1000 + 512)
    assert index.find([*tokens, 9990, 9991, 9992]) == (9993, LONG)


def test_a_long_prompt_is_taken_in_over_several_looks() -> None:
    index, tokens = NgramIndex(), [*range(1000), 700, 701, 702]
    assert index.find(tokens) is None
    assert index.find(tokens) == (703, LONG)


@given(st.lists(st.integers(0, 3), min_size=4, max_size=60), st.sampled_from(LENGTHS))
def test_a_draft_goes_on_as_the_text_did(tokens: list[int], length: int) -> None:
    drafter = Drafter()
    if drafter.look(tokens):
        draft = drafter.draft(tokens, length)
        assert len(draft) == length
        start, alike = latest(tokens) or (0, 0)
        for at in range(length):
            assert draft[at] == [*tokens, *draft][start + at]
        assert tokens[start - alike : start] == tokens[-alike:]


def test_a_draft_repeats_what_has_just_begun_to_repeat() -> None:
    drafter, tokens = Drafter(), [9, 1, 2, 3, 1, 2, 3]
    assert drafter.look(tokens)
    assert drafter.draft(tokens, 7) == (1, 2, 3, 1, 2, 3, 1)
