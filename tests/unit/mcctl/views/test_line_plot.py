"""Charts: round ticks, names that are text and not markup."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcctl.views.line_plot import Chart, Line, page, ticks

SVG = "{http://www.w3.org/2000/svg}"


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


def test_of_many_lines_each_looks_different_and_is_named_within_the_page() -> None:
    lines = [Line(f"line {number}", [(0, 0), (1, number)]) for number in range(25)]
    few, many = Chart("few", "x", lines[:2]), Chart("many", "x", lines)
    image = ElementTree.fromstring(page([few, many, few]))
    drawn = [
        (line.get("stroke"), line.get("stroke-dasharray"))
        for line in image.findall(f".//{SVG}g[2]/{SVG}polyline")
    ]
    assert len(set(drawn)) == len(drawn) == 25
    tops = [int((g.get("transform") or "").split()[1][:-1]) for g in image.findall(f"{SVG}g")]
    lowest = max(float(text.get("y") or 0) for text in image.findall(f".//{SVG}g[2]/{SVG}text"))
    assert tops[1] + lowest < tops[2]
    assert tops[1] - tops[0] < tops[2] - tops[1]
    assert tops[2] < int(image.get("height") or 0)
