"""Charts: round ticks, names that are text and not markup."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcctl.views.line_plot import Chart, Line, page, ticks


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (26.8, [0, 5, 10, 15, 20, 25, 30]),
        (0.0344, [0, 0.01, 0.02, 0.03, 0.04]),
        (0.0, [0, 1]),
    ],
)
def test_ticks_are_round(largest: float, expected: list[float]) -> None:
    assert ticks(largest) == pytest.approx(expected)


@given(st.floats(1e-9, 1e12))
def test_ticks_hold_the_largest_and_are_few(largest: float) -> None:
    found = ticks(largest)
    assert found[-1] >= largest * (1 - 1e-6)
    assert found[-2] < largest
    assert len(found) <= 8


def test_names_are_escaped_and_an_empty_chart_is_drawn() -> None:
    image = page([Chart("a < b", "s", [Line("<x>", [(0, 0), (1, 2)])]), Chart("none", "s", [])])
    texts = {element.text for element in ElementTree.fromstring(image).iter() if element.text}
    assert {"a < b", "<x>", "none"} <= texts
