"""Results as JSON, plain lines and tables."""

import json

import msgspec
import pytest

from mcctl import render
from mcctl.render import Branch, Column


class Thing(msgspec.Struct, frozen=True):
    name: str
    hash: bytes


class Packed(msgspec.Struct, frozen=True, array_like=True):
    number: int


COLUMNS = [Column("name", lambda t: t.name), Column("hash", lambda t: t.hash.hex(), is_number=True)]
THINGS = [Thing("a", b"\x01\xff"), Thing("[b]", b"")]


def test_json_has_hashes_in_hex_and_records_as_objects(capsys: pytest.CaptureFixture[str]) -> None:
    render.emit("json", {"things": THINGS, "packed": Packed(7)}, COLUMNS, THINGS)
    assert json.loads(capsys.readouterr().out) == {
        "things": [{"name": "a", "hash": "01ff"}, {"name": "[b]", "hash": ""}],
        "packed": {"number": 7},
    }


def test_plain_is_tab_separated_without_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    render.emit("plain", None, COLUMNS, THINGS)
    assert capsys.readouterr().out == "a\t01ff\n[b]\t\n"


def test_table_shows_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    render.emit("table", None, COLUMNS, THINGS)
    out = capsys.readouterr().out
    assert "[b]" in out
    assert "name" in out


def test_narrow_terminal_goes_without_the_extra_columns_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [
        Column("name", lambda t: t.name),
        Column("kept", lambda _: "k" * 30, extra=1),
        Column("first", lambda _: "f" * 30, extra=2),
        Column("text", lambda _: "word " * 20, is_prose=True),
    ]
    from rich.console import Console

    for width, hidden in (
        (200, ""),
        (80, "(columns left out, no room: first)"),
        (50, "(columns left out, no room: first, kept)"),
    ):
        monkeypatch.setattr(
            render, "console", lambda width=width, **_: Console(width=width, highlight=False)
        )
        render.show_table("", columns, THINGS)
        lines = capsys.readouterr().out.rstrip().splitlines()
        assert all(len(line) <= width for line in lines)
        assert (lines[-1] if hidden else "") == hidden
        assert len([line for line in lines if "word" in line]) == len(THINGS)


def test_narrow_terminal_keeps_names_whole_and_goes_without_the_last_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    figures = [f"figure {number}" for number in range(9)]
    columns = [
        Column("policy", lambda _: "kvcache-centric"),
        *(Column(title, lambda _: "1.25 s", is_number=True) for title in figures),
    ]
    monkeypatch.setattr(render, "console", lambda **_: Console(width=80, highlight=False))
    render.show_table("", columns, THINGS)
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert sum("kvcache-centric" in line for line in lines) == len(THINGS)
    assert lines[-1] == "(columns left out, no room: figure 8, figure 7)"
    prose = Column("said", lambda _: "word " * 20, is_prose=True)
    render.show_table("", [prose, *columns[1:6]], THINGS)
    assert "left out" not in capsys.readouterr().out, "prose is cut before a number goes"


HASH = "1104dab09c5de259dce37676149cfbd1"
PATH = "/var/lib/mooncake/models/SmolLM2-135M-Instruct"


@pytest.mark.parametrize("width", [200, 80, 60, 40, 20])
def test_what_people_copy_is_never_broken_however_narrow_it_is(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    columns = [
        Column("hash", lambda _: HASH),
        Column("size", lambda _: "1.4 MiB", is_number=True, extra=1),
        Column("idle", lambda _: "32.20 s", is_number=True),
        Column("fix", lambda _: f"free {PATH} on each of the hosts"),
        Column("begins", lambda _: "word " * 20, is_prose=True),
    ]
    render.show_table("", columns, THINGS)
    out = capsys.readouterr().out
    assert (out.count(HASH), out.count(PATH)) == (len(THINGS), len(THINGS))
    if width >= 120:
        assert "left out" not in out
    render.show_facts([("hash", HASH), ("path", f"free {PATH} on each of the hosts")])
    root = Branch("root")
    root.add("host").add("segment", f"1 GiB used {PATH}")
    render.show_tree(root)
    out = capsys.readouterr().out
    assert (out.count(HASH), out.count(PATH)) == (1, 2)


def test_a_row_of_names_and_prose_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    columns = [
        Column("block", lambda _: "0", is_number=True),
        Column("hash", lambda _: HASH),
        Column("nodes", lambda _: "cachenode, prefill (device), prefill-2 (device)", is_prose=True),
    ]
    render.show_table("", columns, THINGS)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == 2 + len(THINGS)
    assert all(HASH in line and "cachenode, prefill" in line for line in lines[2:])
    assert all(len(line) <= 80 for line in lines)


def test_tree_shows_every_branch(capsys: pytest.CaptureFixture[str]) -> None:
    root = Branch("root")
    root.add("host", "id 1").add("daemon", "pid [2]")
    render.show_tree(root)
    out = capsys.readouterr().out
    assert "host  id 1" in out
    assert "daemon  pid [2]" in out


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with render.progress("begin") as progress:
        progress("go on")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "begin" in captured.err
    assert "go on" in captured.err


def test_names_cannot_move_the_cursor_or_break_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    things = [Thing("a\x1b[2Jb\tc\x00\nd é", b"")]
    render.emit("plain", None, COLUMNS, things)
    assert capsys.readouterr().out == "a\\x1b[2Jb\\tc\\x00\\nd é\t\n"
    render.emit("table", None, COLUMNS, things)
    render.show_facts([("name", "\x1b]0;title\x07")])
    out = capsys.readouterr().out
    assert "\\x1b[2Jb\\tc\\x00" in out
    assert "\x1b" not in out


def test_empty_table_says_that_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    render.emit("table", None, COLUMNS, [])
    assert "(none)" in capsys.readouterr().out
    render.emit("plain", None, COLUMNS, [])
    assert not capsys.readouterr().out


def test_pipe_gets_every_column_unless_the_environment_says_how_wide_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = [COLUMNS[0], Column("more", lambda _: "m" * 200, extra=1)]
    monkeypatch.delenv("COLUMNS", raising=False)
    render.show_table("", wide, THINGS)
    assert "m" * 200 in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    render.show_table("", wide, THINGS)
    assert "(columns left out, no room: more)" in capsys.readouterr().out


def test_progress_says_the_same_once(capsys: pytest.CaptureFixture[str]) -> None:
    with render.progress("waiting") as say:
        for text in ("waiting", "1 of 2", "1 of 2", "2 of 2"):
            say(text)
    assert [line[10:] for line in capsys.readouterr().err.splitlines()] == [
        "waiting",
        "1 of 2",
        "2 of 2",
    ]
