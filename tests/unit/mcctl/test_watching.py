"""--watch: only with verbs that list, again and again, and through times without a cluster."""

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from daemons.core.errors import NotFound, Unavailable
from mcctl import watching
from mcctl.main import main


def test_later_failures_are_said_and_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = iter([None, Unavailable("the master is gone"), None, NotFound("no such")])

    def verb() -> None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    with pytest.raises(NotFound):
        watching.repeated(verb, lambda: 0.001)()
    assert capsys.readouterr().err == "mcctl: the master is gone\n"


def test_first_failure_is_the_command_s(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["node", "list", "--endpoint", "tcp://127.0.0.1:1", "--timeout", "0.2"]
    assert main([*words, "--watch", "--interval", "0.1"]) == 7
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["--watch", "node", "list"], ["node", "list", "--interval", "0"]]
)
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "interval" in capsys.readouterr().err


def test_verbs_that_do_something_cannot_be_watched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "down", "--watch"]) == 2
    assert "--watch" in capsys.readouterr().err


def test_it_looks_again_until_ctrl_c(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mcctl", "model", "list", "-o", "json"]
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        [*words, "--watch", "--interval", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(9)]
        process.send_signal(2)
        assert process.wait(10) == 130
    assert sum("models" in line for line in first) >= 2
    assert "\x1b" not in "".join(first)


def on_a_terminal(*words: str, **environment: str) -> str:
    """What `mcctl model list` writes there."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [sys.executable, "-m", "mcctl", "model", "list", *words],
            stdout=theirs,
            cwd=Path(__file__).parents[3],
            env={"TERM": "xterm-256color", "PATH": "/usr/bin:/bin", **environment},
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: it has ended
            while part := terminal.read(65536):
                shown += part
        assert process.wait(10) == 0
    return shown.decode()


def test_no_color_leaves_no_escape_sequence(tmp_path: Path) -> None:
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    assert "\x1b[1m" in on_a_terminal(**home)
    assert "\x1b" not in on_a_terminal("--no-color", **home)
    assert "\x1b" not in on_a_terminal(NO_COLOR="1", **home)


def test_on_a_terminal_a_picture_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        "import sys; from mcctl import watching; n = iter(range(3))\n"
        "watching.repeated(lambda: print(next(n)), lambda: 0.01)()"
    )
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "code.py")],
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": str(Path(__file__).parents[3])},
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):
            while part := terminal.read(65536):
                shown += part
        process.wait(10)
    assert shown.count(b"\x1b[H\x1b[2J") == 4
