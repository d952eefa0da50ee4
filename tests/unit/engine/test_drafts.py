import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.engine import drafts as drafts_module
from daemons.engine.base import Made
from daemons.engine.draft_plan import MAX_ROWS, Drafting, Wish, room_for_drafts, share_rows
from daemons.engine.drafts import LONG, SHORT, Drafter, NgramIndex
from daemons.engine.geometry import CHUNK_TOKENS, KvGeometry
from daemons.engine.sequence import Sequence
from daemons.engine.slots import Slot
from daemons.protocol.request import SamplingParams

SLOT = Slot(0, 0, 1024, KvGeometry(1, 1, 4, "float32"))
LENGTHS = (1, 3, 7, 15)


def sequence(tokens: list[int], max_length: int = 900) -> Sequence:
    return Sequence("a", SLOT, tokens, SamplingParams(max_tokens=1), max_length)


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


def run(tokens: list[int], answer: list[int], drafting: Drafting) -> list[Made]:
    """An engine that says `answer`."""
    one, steps = sequence(tokens), list[Made]()
    said = 0
    while said < len(answer):
        (draft,) = drafting.plan([one], LENGTHS)
        right = 0
        while right < len(draft) and draft[right] == answer[said + right]:
            right += 1
        made = Made(tuple(answer[said : said + right + 1]), len(draft))
        drafting.learn([one], [made], 0.05)
        one.tokens.extend(made.tokens)
        said += right + 1
        steps.append(made)
    return steps


def test_a_quoted_prompt_takes_few_steps() -> None:
    quoted = list(range(100, 160))
    steps = run([1, *quoted, 2, 3, *quoted[:3]], [*quoted[3:], *range(500, 516)], Drafting(15))
    assert sum(len(each.tokens) for each in steps[:12]) >= 57
    assert max(each.num_drafts for each in steps) == 15


def test_where_drafts_are_always_wrong_few_are_tried() -> None:
    # Each pair of tokens was said before, and is followed by another one than last time.
    answer = [token for number in range(200) for token in (1, 2, 1000 + number)]
    tried = [each.num_drafts for each in run([1, 2, 999, 1, 2, 998], answer, Drafting(15))]
    assert sum(tried[:200]) < 60
    assert sum(tried[200:]) < 30


def test_drafts_that_become_right_again_are_taken_up_again() -> None:
    wrong = [token for number in range(60) for token in (1, 2, 1000 + number)]
    steps = run([1, 2, 999], [*wrong, *[5, 6, 7, 8] * 60, *range(2000, 2016)], Drafting(15))
    assert len(steps) < len(wrong) + 60


@pytest.mark.parametrize("most", [0, 1, 6, 15])
def test_drafts_are_no_longer_than_asked_for(most: int) -> None:
    drafting = Drafting(most)
    for _ in range(2):
        (draft,) = drafting.plan([sequence([1, 2, 3] * 20)], LENGTHS)
        assert len(draft) <= most
        assert bool(draft) == bool(most)


def test_who_wants_none_gets_none_and_none_are_made_without_lengths() -> None:
    one = sequence([1, 2, 3] * 20)
    assert Drafting(15).plan([one], ()) == [()]
    one.may_draft = False
    assert Drafting(15).plan([one], LENGTHS) == [()]


@settings(deadline=None)
@given(st.integers(4, 899), st.integers(1, 40))
def test_drafts_stay_within_chunk_and_length(num_tokens: int, left: int) -> None:
    one = sequence([1, 2, 3] * 300, 1024)
    one.tokens = one.tokens[:num_tokens]
    one.max_length = num_tokens + left
    room = room_for_drafts(one)
    last = one.position + room
    assert last // CHUNK_TOKENS == one.position // CHUNK_TOKENS
    assert num_tokens + 1 + room <= one.max_length
    (draft,) = Drafting(15).plan([one], LENGTHS)
    assert len(draft) <= room


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from([(1,), (1, 3), LENGTHS])),
        min_size=1,
        max_size=32,
    ),
    st.floats(0.01, 1),
)
def test_rows_of_a_step_are_bounded_and_go_where_they_are_likeliest(
    asked: list[tuple[float, tuple[int, ...]]], row_share: float
) -> None:
    wishes = [Wish(row, chance, lengths) for row, (chance, lengths) in enumerate(asked)]
    chosen = share_rows(wishes, len(wishes), row_share)
    assert len(chosen) + sum(chosen) <= max(MAX_ROWS, len(wishes))
    for wish, length in zip(wishes, chosen, strict=True):
        assert length == 0 or length in wish.lengths
    for one, its in zip(wishes, chosen, strict=True):
        for other, length in zip(wishes, chosen, strict=True):
            if one.lengths == other.lengths and one.chance > other.chance:
                assert its >= length or sum(chosen) + len(chosen) > MAX_ROWS - LENGTHS[-1]


def test_dear_rows_are_not_spent_on_unlikely_tokens() -> None:
    likely, unlikely = Wish(0, 0.9, LENGTHS), Wish(1, 0.1, LENGTHS)
    assert share_rows([likely, unlikely], 8, 0.03) == [7, 0, *[0] * 6]
    assert share_rows([dataclasses.replace(unlikely, row=0)], 1, 0.03) == [1]
    assert share_rows([likely], 1, 1.0) == [0]
