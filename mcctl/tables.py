"""Tables that fit the terminal: which columns there is room for. Nothing is printed here; that is for render."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Column:
    """`text` turns a row into a cell. Numbers stand right. A narrow terminal goes without the extra ones."""

    title: str
    text: Callable[[Any], str]
    is_number: bool = False
    extra: int = 0
    """0: always shown; else the highest goes first."""
    is_prose: bool = False
    """A narrow terminal cuts it, down to _PROSE_CHARS before extra columns go."""


_PROSE_CHARS: Final = 30
_FOLDED_CHARS: Final = 16
"""A column of words is folded down to so much, not further: a name must stay one."""
_UNBOUNDED_CHARS: Final = 10_000
PIPE_CHARS: Final = 160
"""Where texts wrap when nobody says how wide it is; a table that needs more takes it."""


def left_out(titles: Sequence[str]) -> str:
    return f"(columns left out, no room: {', '.join(titles)})"


def fitted(
    target: "Console", title: str, columns: Sequence[Column], lines: Sequence[Any]
) -> "tuple[Table, list[str]]":
    """The table with as many columns as there is room for, and the titles of those that it goes without: where words
    would be folded beyond recognition, of the last numbers too.
    """
    unbounded = target.options.update(max_width=_UNBOUNDED_CHARS)
    shown, hidden, is_tall = list(columns), list[str](), False
    while True:
        drawn = table(title, shown, lines, is_tall=is_tall)
        prose = [len(c.text(row)) for c in shown if c.is_prose for row in lines]
        needed = target.measure(drawn, options=unbounded).maximum - max(
            0, max(prose, default=0) - _PROSE_CHARS
        )
        if target.width == PIPE_CHARS and not target.is_terminal:
            target.width = max(target.width, needed)
        if needed <= target.width:
            return drawn, hidden
        least = _least(shown, needed - _foldable(shown, lines) > target.width)
        if not is_tall:
            is_tall = True
        elif least is None:
            return drawn, hidden
        else:
            shown.remove(least)
            hidden.append(least.title)


def _least(shown: Sequence[Column], is_squeezed: bool) -> Column | None:
    """What goes next, if anything may."""
    least = min(shown, key=lambda column: -column.extra)
    if least.extra:
        return least
    numbers = [column for column in shown if column.is_number]
    return numbers[-1] if is_squeezed and len(numbers) > 1 else None


def _foldable(shown: Sequence[Column], lines: Sequence[Any]) -> int:
    """By how many characters columns of words can be narrower; `fitted` has cut prose already."""
    widths = [
        min(
            max((len(column.text(row)) for row in lines), default=0),
            _PROSE_CHARS if column.is_prose else _UNBOUNDED_CHARS,
        )
        for column in shown
        if not column.is_number
    ]
    return sum(max(0, width - _FOLDED_CHARS) for width in widths)


def table(
    title: str, columns: Sequence[Column], rows: Sequence[Any], *, is_tall: bool = False
) -> "Table":
    """Of all columns, whatever room there is; `fitted` leaves some out. A tall one has a word a line above numbers."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    def cell(column: Column, row: Any) -> "str | Text":
        text = printable(column.text(row))
        return Text(text, no_wrap=True, overflow="ellipsis") if column.is_prose else escape(text)

    drawn = Table(
        title=title or None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    for column in columns:
        drawn.add_column(
            column.title.replace(" ", "\n") if is_tall and column.is_number else column.title,
            justify="right" if column.is_number else "left",
            overflow="fold",
            no_wrap=column.is_number,
        )
    for row in rows:
        drawn.add_row(*(cell(column, row) for column in columns))
    return drawn


def printable(text: str, kept: str = "\n") -> str:
    """With control characters as escapes: a name of somebody's must not move the cursor or break a line."""
    if text.isprintable():
        return text
    return "".join(
        c if c in kept or c > "\x9f" or " " <= c < "\x7f" else c.encode("unicode_escape").decode()
        for c in text
    )
