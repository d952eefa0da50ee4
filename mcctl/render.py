"""The only place that prints: results to stdout as a table, JSON or plain text; progress and complaints to stderr."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcctl.settings import Output
from mcctl.tables import PIPE_CHARS
from mcctl.tables import Column as Column
from mcctl.tables import fitted as fitted
from mcctl.tables import left_out as left_out
from mcctl.tables import longest_word as longest_word
from mcctl.tables import printable as printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# rich takes 0.1 s to import and JSON needs none of it, so the functions that draw import it.


def emit(
    output: Output,
    result: object,
    columns: Sequence[Column],
    rows: Iterable[Any],
    *,
    title: str = "",
) -> None:
    """`result` as JSON, or its rows as a table (people) or tab-separated lines without a heading (cut, awk)."""
    match output:
        case "json":
            emit_json(result)
        case "plain":
            for row in rows:
                print("\t".join(printable(column.text(row), "") for column in columns))
        case "table":
            show_table(title, columns, rows)


def show_table(
    title: str, columns: Sequence[Column], rows: Iterable[Any], *, on_stderr: bool = False
) -> None:
    target, lines = console(on_stderr=on_stderr), list(rows)
    drawn, hidden = fitted(target, title, columns, lines)
    target.print(drawn)
    if not lines:
        target.print(" (none)", style="dim")
    if hidden:
        target.print(left_out(hidden), style="dim")


def show_facts(facts: Sequence[tuple[str, str]], *, on_stderr: bool = False) -> None:
    """Two columns without lines: name, value."""
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(escape(printable(name)), escape(printable(value)))
    names = max((len(name) for name, _ in facts), default=0) + 2
    least = names + longest_word(printable(value) for _, value in facts)
    show(table, on_stderr=on_stderr, least_width=least)


def emit_facts(output: str, facts: Sequence[tuple[str, str]]) -> None:
    """A table for people; with `plain` a line each, tab-separated."""
    if output == "plain":
        for name, value in facts:
            emit_line(f"{name}\t{value}")
    else:
        show_facts(facts)


def emit_json(result: object) -> None:
    """One indented object; bytes are hex, not base64: they are hashes."""
    text = msgspec.json.format(msgspec.json.encode(_hex(result)), indent=2)
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()


def emit_json_line(result: object) -> None:
    """One object on one line: a stream of them."""
    sys.stdout.write(msgspec.json.encode(_hex(result)).decode() + "\n")
    sys.stdout.flush()


def emit_line(text: str) -> None:
    """One line of result."""
    print(text, flush=True)


def emit_text(text: str) -> None:
    """A piece of a stream, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def complain(text: str) -> None:
    print(f"mcctl: {text}", file=sys.stderr)


def note(text: str) -> None:
    """For people, beside the result."""
    print(text, file=sys.stderr, flush=True)


@dataclass(slots=True)
class Branch:
    """A node of a tree: what it is, then a remark."""

    name: str
    remark: str = ""
    children: list["Branch"] = field(default_factory=list)

    def add(self, name: str, remark: str = "") -> "Branch":
        child = Branch(name, remark)
        self.children.append(child)
        return child


def show_tree(root: Branch) -> None:
    from rich.markup import escape
    from rich.tree import Tree

    def draw(branch: Branch, into: Tree, depth: int) -> int:
        """The least width that breaks no word."""
        least = 0
        for child in branch.children:
            name, remark = printable(child.name), printable(child.remark)
            own = into.add(f"[bold]{escape(name)}[/]  {escape(remark)}")
            words = _TREE_INDENT * depth + longest_word([name, remark])
            least = max(least, words, draw(child, own, depth + 1))
        return least

    tree = Tree(f"[bold]{escape(root.name)}[/]  {escape(root.remark)}".rstrip())
    show(tree, least_width=draw(root, tree, 1))


_TREE_INDENT: Final = 4


def show(item: "RenderableType", *, on_stderr: bool = False, least_width: int = 0) -> None:
    """A rich table or tree. Where no terminal says how wide it is, nothing is cut off; what has words that need more
    than the terminal's width is left to its own wrapping.
    """
    target = console(on_stderr=on_stderr)
    target.width = max(target.width, least_width)
    target.print(item)


def console(*, on_stderr: bool = False) -> "Console":
    from rich.console import Console

    stream = sys.stderr if on_stderr else sys.stdout
    return Console(
        file=stream,
        highlight=False,
        width=None if stream.isatty() or os.environ.get("COLUMNS", "").isdecimal() else PIPE_CHARS,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """A spinner with the latest message on a terminal; elsewhere a line per new message, with the time."""
    started_s = time.monotonic()
    if not sys.stderr.isatty():
        note(f"[{0:5.1f} s] {first}")
        said = first

        def say(text: str) -> None:
            nonlocal said
            if text != said:
                said = text
                note(f"[{time.monotonic() - started_s:5.1f} s] {text}")

        yield say
        return
    with console(on_stderr=True).status(first) as status:
        yield status.update


@contextmanager
def waiting(text: str) -> Iterator[Callable[[], None]]:
    """A spinner on a terminal until the yielded call, or the end: before a stream's first piece. Silent elsewhere."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    status = console(on_stderr=True).status(text)
    status.start()
    try:
        yield status.stop
    finally:
        status.stop()


def _hex(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, msgspec.Struct):
        return {f: _hex(getattr(value, f)) for f in value.__struct_fields__}
    if isinstance(value, dict):
        return {_hex(key): _hex(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hex(item) for item in value]
    if isinstance(value, str):  # of the command line or a path, with bytes that are no text
        return os.fsencode(value).decode("utf-8", "backslashreplace")
    return value
