"""Tables that fit the terminal: which columns there is room for. Nothing is printed here; that is for render."""

from collections.abc import Callable, Iterable, Sequence
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
_LEAST_PROSE_CHARS: Final = 10
"""Where there is nothing else left to give up."""
_UNBOUNDED_CHARS: Final = 10_000
PIPE_CHARS: Final = 160
"""Where texts wrap when nobody says how wide it is; a table that needs more takes it."""


def left_out(titles: Sequence[str]) -> str:
    return f"(columns left out, no room: {', '.join(titles)})"


def fitted(
    target: "Console", title: str, columns: Sequence[Column], lines: Sequence[Any]
) -> "tuple[Table, list[str]]":
    """The table with as many columns as there is room for, and the titles of those that it goes without.

    A word is never broken: a hash or a path in two lines cannot be copied. Where one still does not fit, the table is
    wider than the terminal, whose own wrapping does not get into what is copied.
    """
    unbounded = target.options.update(max_width=_UNBOUNDED_CHARS)
    shown, hidden, is_tall = list(columns), list[str](), False
    while True:
        drawn = table(title, shown, lines, is_tall=is_tall)
        excess = target.measure(drawn, options=unbounded).maximum - target.width
        widths = _Widths.of(shown, lines)
        widths.cut_prose(excess)
        if target.width == PIPE_CHARS and not target.is_terminal:
            target.width += max(0, excess - widths.saved)
            excess = min(excess, widths.saved)
        if widths.saved < excess and not is_tall:
            is_tall = True
            continue
        least = _least(shown, excess, widths)
        if least is None:
            break
        shown.remove(least)
        hidden.append(least.title)
    widths.fold_words(excess)
    widths.cut_prose(excess, _LEAST_PROSE_CHARS)
    target.width += max(0, excess - widths.saved)
    for column, width in zip(drawn.columns, widths.now, strict=True):
        column.width = width
    return drawn, hidden


def _least(shown: Sequence[Column], excess: int, widths: "_Widths") -> Column | None:
    """What goes next, if something must: one that may, else the last of several numbers before a word is broken."""
    if widths.saved >= excess:
        return None
    least = min(shown, key=lambda column: -column.extra)
    if least.extra:
        return least
    numbers = [column for column in shown if column.is_number]
    must = widths.saved + widths.foldable() < excess
    return numbers[-1] if must and len(numbers) > 1 else None


@dataclass(slots=True)
class _Widths:
    """How wide each column of texts is to be; None where its texts say so, as numbers do."""

    columns: Sequence[Column]
    now: list[int | None]
    words: list[int]
    """The longest word of each."""
    saved: int = 0

    @classmethod
    def of(cls, columns: Sequence[Column], lines: Sequence[Any]) -> "_Widths":
        from rich.cells import cell_len

        now, words = list[int | None](), list[int]()
        for column in columns:
            texts = [printable(column.text(row)) for row in lines] + [column.title]
            parts = [line for text in texts for line in text.splitlines()]
            now.append(None if column.is_number else max(map(cell_len, parts), default=0))
            words.append(longest_word(parts))
        return cls(columns, now, words)

    def cut_prose(self, excess: int, least: int = _PROSE_CHARS) -> None:
        self._shrink(excess, lambda at: least if self.columns[at].is_prose else None)

    def fold_words(self, excess: int) -> None:
        self._shrink(excess, lambda at: None if self.columns[at].is_prose else self.words[at])

    def foldable(self) -> int:
        return sum(
            max(0, width - self.words[at])
            for at, width in enumerate(self.now)
            if width is not None and not self.columns[at].is_prose
        )

    def _shrink(self, excess: int, floor: Callable[[int], int | None]) -> None:
        """The widest first, until so many characters are saved or each stands on its floor."""
        while self.saved < excess:
            above = [
                (width, at)
                for at, width in enumerate(self.now)
                if width is not None and (least := floor(at)) is not None and width > least
            ]
            if not above:
                return
            width, at = max(above)
            self.now[at] = width - 1
            self.saved += 1


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
            _tall(column.title) if is_tall and column.is_number else column.title,
            justify="right" if column.is_number else "left",
            overflow="fold",
            no_wrap=column.is_number,
        )
    for row in rows:
        drawn.add_row(*(cell(column, row) for column in columns))
    return drawn


def _tall(title: str) -> str:
    return title.replace(" ", "\n").replace("/", "/\n")


def longest_word(texts: Iterable[str]) -> int:
    """In cells of a terminal."""
    from rich.cells import cell_len

    return max((cell_len(word) for text in texts for word in text.split()), default=0)


def printable(text: str, kept: str = "\n") -> str:
    """With control characters as escapes: a name of somebody's must not move the cursor or break a line."""
    if text.isprintable():
        return text
    return "".join(
        c if c in kept or c > "\x9f" or " " <= c < "\x7f" else c.encode("unicode_escape").decode()
        for c in text
    )
