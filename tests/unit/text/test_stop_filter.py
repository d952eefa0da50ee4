"""Stop strings are found across pieces, and nothing of them is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.text.stop_filter import StopFilter

LETTERS = st.text(alphabet="ab", max_size=30)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)


def cut_at_first_end(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The rule spelled out: the stop that ends first; of two ending together, the longer."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=LETTERS, stops=STOPS, sizes=st.lists(st.integers(1, 6), min_size=1))
def test_equals_the_rule_however_the_text_is_cut(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    filter_, shown, position = StopFilter(stops), "", 0
    for size in sizes * (len(text) + 1):
        shown += filter_.push(text[position : position + size])
        position += size
        expected, stop = cut_at_first_end(text, stops)
        assert expected.startswith(shown)
    assert (shown + filter_.finish(), filter_.stopped_by) == (expected, stop)


def test_a_possible_beginning_is_held_back_and_released() -> None:
    filter_ = StopFilter(["END"])
    assert filter_.push("the EN") == "the "
    assert filter_.push("emy E") == "ENemy "
    assert filter_.finish() == "E"


def test_nothing_is_shown_after_a_stop() -> None:
    filter_ = StopFilter(["."])
    assert filter_.push("a.b") == "a"
    assert filter_.push("more") == ""
    assert filter_.finish() == ""
    assert filter_.stopped_by == "."


def test_no_stops_hold_nothing() -> None:
    assert StopFilter([]).push("abc") == "abc"


def test_empty_stop_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        StopFilter([""])
