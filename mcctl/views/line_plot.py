"""Lines over a common axis as SVG, one chart below the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from mcctl.views.plot_file import FONT_FAMILY

_WIDTH, _HEIGHT, _GAP = 480, 300, 24
"""Of the lines of one chart, without the names to their right."""
_LEFT, _TOP, _BOTTOM = 64, 36, 44
_LEGEND, _CHARACTER = 48, 7
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Told apart by the colour-blind too (Okabe and Ito)."""
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3")
"""One after the other where there are more lines than colours."""
_ENTRY: Final = 18
"""Height of a name in the legend."""
_MAX_TICKS: Final = 6

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a chart; the legend says its name."""

    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Chart:
    """Axes begin at 0 and end at the largest value, x at `max_x` where that is given. The title says what y is."""

    title: str
    x_label: str
    lines: Sequence[Line]
    max_x: float = 0.0


def page(charts: Sequence[Chart]) -> str:
    """The whole image."""
    heights = [_height(chart) + _GAP for chart in charts]
    height = sum(heights)
    longest = max((len(line.name) for chart in charts for line in chart.lines), default=0)
    width = _LEFT + _WIDTH + _LEGEND + _CHARACTER * longest
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{FONT_FAMILY}" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, chart in enumerate(charts):
        parts += [
            f'<g transform="translate(0 {sum(heights[:number])})">',
            *_draw(chart),
            "</g>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def _height(chart: Chart) -> int:
    """As much as its legend needs, where that is longer than the lines are high."""
    return max(_HEIGHT, _TOP + _ENTRY * len(chart.lines))


def _draw(chart: Chart) -> list[str]:
    points = [point for line in chart.lines for point in line.points]
    x_ticks = ticks(chart.max_x or max((x for x, _ in points), default=0.0))
    y_ticks = ticks(max((y for _, y in points), default=0.0))
    height = _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + _WIDTH * min(x / x_ticks[-1], 1.0), _TOP + height * (1 - y / y_ticks[-1])

    parts = [
        _text(_LEFT, 20, chart.title, anchor="start"),
        _text(_LEFT + _WIDTH // 2, _HEIGHT - 6, chart.x_label),
    ]
    parts += [_text(place(tick, 0)[0], _TOP + height + 18, f"{tick:g}") for tick in x_ticks]
    for tick in y_ticks:
        y = place(0, tick)[1]
        parts += [
            f'<path d="M{_LEFT} {y:.1f}h{_WIDTH}" stroke="#ddd"/>',
            _text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end"),
        ]
    for number, line in enumerate(chart.lines):
        colour = _COLOURS[number % len(_COLOURS)]
        dashes = _DASHES[number // len(_COLOURS) % len(_DASHES)]
        stroke = f'stroke="{colour}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line.points))
        at = _TOP + _ENTRY * number + 8
        parts += [
            f'<polyline points="{path}" fill="none" {stroke} stroke-width="2"/>',
            f'<path d="M{_LEFT + _WIDTH + 12} {at - 4}h20" {stroke} stroke-width="3"/>',
            _text(_LEFT + _WIDTH + 34, at, line.name, anchor="start"),
        ]
    return parts


def ticks(largest: float) -> list[float]:
    """From 0 to the first round number that is not below `largest`; 0 and 1 for none."""
    if not largest > 0:
        return [0.0, 1.0]
    least = largest / _MAX_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))
    return [step * number for number in range(math.ceil(largest / step - 1e-9) + 1)]


def _text(x: float, y: float, text: str, *, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
