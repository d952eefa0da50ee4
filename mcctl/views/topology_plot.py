"""The probed paths as a heat map."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from mcctl.topology_probe import ProbedPath
from mcctl.views.plot_file import FONT_FAMILY

_CELL, _HEIGHT, _LEFT, _TOP, _CHARACTER = 112, 44, 24, 64, 8
_SLOW, _FAST = (255, 247, 236), (8, 88, 158)
_FAILED: Final = "#d7301f"
_NONE: Final = "#f0f0f0"


def svg(paths: Sequence[ProbedPath]) -> str:
    """Rows read, columns are read; the darker the faster, on a logarithmic scale."""
    sources = list(dict.fromkeys(path.source for path in paths))
    targets = list(dict.fromkeys(path.target for path in paths))
    found = {(path.source, path.target): path for path in paths}
    rates = [path.measured.bytes_per_s for path in paths if path.measured is not None]
    left = _LEFT + _CHARACTER * max(map(len, sources), default=0)
    cell = max(_CELL, _CHARACTER * max(map(len, targets), default=0) + 12)
    width, height = left + cell * len(targets) + 24, _TOP + _HEIGHT * len(sources) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{FONT_FAMILY}" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(left, 20, "GB/s by which a row reads from a column", anchor="start"),
    ]
    for column, target in enumerate(targets):
        parts.append(_text(left + cell * column + cell // 2, _TOP - 10, target))
    for row, source in enumerate(sources):
        top = _TOP + _HEIGHT * row
        parts.append(_text(left - 8, top + _HEIGHT // 2 + 4, source, anchor="end"))
        for column, target in enumerate(targets):
            place = (left + cell * column, top, cell)
            parts += _cell(place, found.get((source, target)), rates)
    parts.append(
        _text(left, height - 14, "darker is faster; red could not be measured", anchor="start")
    )
    return "\n".join([*parts, "</svg>", ""])


def _cell(
    place: tuple[int, int, int], path: ProbedPath | None, rates: Sequence[float]
) -> list[str]:
    left, top, width = place
    colour, ink, lines, hint = _NONE, "black", ["-"], ""
    if path is not None and path.measured is None:
        colour, ink, lines, hint = _FAILED, "white", ["failed"], path.error
    elif path is not None and path.measured is not None:
        shade = _shade(path.measured.bytes_per_s, rates)
        mixed = [round(a + (b - a) * shade) for a, b in zip(_SLOW, _FAST, strict=True)]
        colour, ink = "#{:02x}{:02x}{:02x}".format(*mixed), "white" if shade > 0.5 else "black"
        lines = [
            f"{path.measured.bytes_per_s / 1e9:.3g}",
            f"{path.measured.transport} {path.measured.latency_s * 1e6:.0f} us",
        ]
        hint = "; ".join(path.warnings)
    title = f"<title>{escape(hint)}</title>" if hint else ""
    first = top + (_HEIGHT // 2 - 3 if len(lines) > 1 else _HEIGHT // 2 + 4)
    return [
        f'<rect x="{left}" y="{top}" width="{width - 2}" height="{_HEIGHT - 2}" fill="{colour}">{title}</rect>',
        *(
            _text(left + width // 2, first + 15 * index, line, ink=ink)
            for index, line in enumerate(lines)
        ),
    ]


def _shade(rate: float, rates: Sequence[float]) -> float:
    low, high = math.log(max(min(rates), 1)), math.log(max(max(rates), 1))
    return (math.log(max(rate, 1)) - low) / (high - low) if high > low else 1.0


def _text(x: int, y: int, text: str, *, anchor: str = "middle", ink: str = "black") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{ink}">{escape(text)}</text>'
