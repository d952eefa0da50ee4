"""Drafts are tried where they pay, by stated costs and chances, and rest where they do not."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.engine.arena.slots import Slot
from daemons.engine.base import Made
from daemons.engine.decode.sequence import Sequence
from daemons.engine.drafts.costs import DraftCosts
from daemons.engine.drafts.plan import (
    CREDIT_A_STEP,
    FIRST_CREDIT,
    MAX_ROWS,
    MOST_CREDIT,
    Drafting,
    Wish,
    choose_lengths,
    room_for_drafts,
    share_rows,
)
from daemons.engine.geometry import CHUNK_TOKENS, KvGeometry
from daemons.protocol.request import SamplingParams

SLOT = Slot(0, 0, 1024, KvGeometry(1, 1, 4, "float32"))
LENGTHS = (1, 3, 7, 15)
ROWS = DraftCosts(row=0.02, length=0.0)
LENGTHS_COST = DraftCosts(row=0.02, length=0.06)


def sequence(tokens: list[int], max_length: int = 900) -> Sequence:
    return Sequence("a", SLOT, tokens, SamplingParams(max_tokens=1), max_length)


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


def wishes(*chances: float) -> list[Wish]:
    return [Wish(row, chance, LENGTHS) for row, chance in enumerate(chances)]


def test_one_draft_is_tried_only_where_it_pays_for_the_length_it_adds_to_a_step() -> None:
    # A right token is an eighth of a step's tokens; the row alone costs 0.02 of a step, with its length 0.08.
    assert choose_lengths(wishes(0.5), 8, ROWS) == [3, *[0] * 7]
    assert choose_lengths(wishes(0.5), 8, LENGTHS_COST) == [0] * 8
    assert choose_lengths(wishes(0.8), 8, LENGTHS_COST)[0] > 0
    assert choose_lengths(wishes(0.1), 1, LENGTHS_COST) == [1], "alone it is the only length"
    assert choose_lengths(wishes(0.01), 1, LENGTHS_COST) == [0]


def test_drafts_that_do_not_pay_one_by_one_may_pay_together() -> None:
    assert choose_lengths(wishes(*[0.4] * 8), 8, LENGTHS_COST) == [1] * 8


def test_one_length_is_taken_where_two_cost_more_than_the_longer_one_brings() -> None:
    chances = [0.6] * 3 + [0.35]
    assert choose_lengths(wishes(*chances), 4, ROWS) == [3, 3, 3, 1]
    dear = dataclasses.replace(ROWS, length=0.2)
    assert choose_lengths(wishes(*chances), 4, dear) == [1, 1, 1, 1]


def served(kind: str, stream: random.Random, drafting: Drafting, batch: int) -> float:
    """Time of an answer of 64 tokens each, in that of the same tokens without drafts, by stated costs."""
    texts = [TEXTS[kind](stream) for _ in range(batch)]
    step = [sequence(text[:400]) for text in texts]
    costs, took, tokens = DraftCosts(row=0.015, length=0.045), 0.0, 0
    while all(len(one.tokens) < 464 for one in step):
        made = []
        drafts = drafting.plan(step, LENGTHS)
        for one, draft, text in zip(step, drafts, texts, strict=True):
            at, right = len(one.tokens), 0
            while right < len(draft) and text[at + right] == draft[right]:
                right += 1
            made.append(Made(tuple(text[at : at + right + 1]), len(draft)))
        cost = costs.of([len(draft) for draft in drafts])
        drafting.learn(step, made, 0.05 * (1 + cost) * stream.lognormvariate(0, 0.2))
        for one, each in zip(step, made, strict=True):
            one.tokens.extend(each.tokens)
        took += 1 + cost
        tokens += sum(len(each.tokens) for each in made)
    return took / (tokens / batch)


def quoting(stream: random.Random) -> list[int]:
    base, text = [stream.randrange(40_000) for _ in range(200)], list[int]()
    while len(text) < 500:
        first = stream.randrange(180)
        text += [*base[first : first + stream.randrange(5, 20)], stream.randrange(40_000)]
    return text


TEXTS = {
    # Two tokens that were said before, and then another one than ever.
    "trap": lambda stream: [
        token for _ in range(170) for token in (1, 2, stream.randrange(3, 40_000))
    ],
    "chance": lambda stream: [int(stream.paretovariate(0.7)) % 3000 for _ in range(500)],
    "quote": quoting,
}


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("kind", ["trap", "chance"])
def test_text_that_drafts_do_not_suit_loses_next_to_nothing(kind: str, batch: int) -> None:
    stream, drafting = random.Random(batch), Drafting(15)
    shares = [served(kind, stream, drafting, batch) for _ in range(5)]
    assert max(shares) < 1.03
    assert sum(shares) / len(shares) < 1.02


@pytest.mark.parametrize(("batch", "share"), [(1, 0.6), (8, 0.8)])
def test_text_that_quotes_takes_less_time(batch: int, share: float) -> None:
    assert served("quote", random.Random(batch), Drafting(15), batch) < share


def test_sequences_begin_with_what_those_before_them_found() -> None:
    drafting, stream = Drafting(15), random.Random(0)
    for _ in range(4):
        served("trap", stream, drafting, 4)
    untried = [sequence([1, 2, 3, 4, 1, 2, 3]) for _ in range(4)]
    short = [sequence([5, 1, 2, 7, 8, 1, 2]) for _ in range(4)]
    assert any(drafting.plan(untried, LENGTHS)), "three tokens alike were not tried before"
    assert not any(drafting.plan(short, LENGTHS))


def test_without_credit_nothing_is_tried_until_steps_have_filled_it() -> None:
    drafting, one = Drafting(15), sequence([1, 2, 3] * 20)
    spent = 0
    while any(drafts := drafting.plan([one], LENGTHS)):
        drafting.learn([one], [Made((9,), len(drafts[0]))], 0.05)
        spent += 1
        assert spent < 100
    drafting.credit = -0.005
    assert drafting.plan([one], LENGTHS) == [()]
    drafting.learn([one], [Made((9,), 0)], 0.05)
    assert drafting.credit == pytest.approx(CREDIT_A_STEP - 0.005)
    right = Made(tuple(range(16)), 15)
    for _ in range(5):
        drafting.plan([one], LENGTHS)
        drafting.learn([one], [right], 0.05)
    assert drafting.credit == MOST_CREDIT > FIRST_CREDIT
