"""mcctl logs of a local cluster: the last lines, those of some daemons, what is added, a file begun anew."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mcctl.cluster import logs as local_logs
from mcctl.cluster.logs import LogFile
from mcctl.cluster.record import ClusterRecord, DaemonRecord, persistent_directory, write_record
from mcctl.main import main

NAMES = ("mc-master", "mc-prefill", "mc-prefill-2")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A cluster that has been; add lines to the log of one of its daemons."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    directory = persistent_directory()
    directory.mkdir(parents=True)
    daemons = [
        DaemonRecord(
            name=name,
            role="master" if name == "mc-master" else "prefill",
            process=None,
            log=str(directory / f"{name}.log"),
        )
        for name in NAMES
    ]
    write_record(
        ClusterRecord(
            directory=str(directory),
            master="",
            events="",
            url="",
            model="",
            scratch=[],
            owner=None,
            daemons=daemons,
        )
    )

    def add(name: str, text: str) -> None:
        with (directory / f"{name}.log").open("a") as log:
            log.write(text)

    return add


Write = Callable[[str, str], None]


def test_last_lines_of_all_are_in_order_of_time(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write("mc-master", "10:00:01 INFO master one\n10:00:03 INFO master two\n")
    write("mc-prefill", "10:00:02 INFO prefill here\n")
    assert main(["logs", "-o", "plain"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "mc-master\t10:00:01 INFO master one",
        "mc-prefill\t10:00:02 INFO prefill here",
        "mc-master\t10:00:03 INFO master two",
    ]
    assert main(["logs", "master", "-n", "1"]) == 0
    assert capsys.readouterr().out == "10:00:03 INFO master two\n"


def test_daemons_are_named_by_role_or_each(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in NAMES:
        write(name, f"10:00:00 {name}\n")

    def shown(*names: str) -> list[str]:
        assert main(["logs", *names, "-o", "json"]) == 0
        return [json.loads(line)["daemon"] for line in capsys.readouterr().out.splitlines()]

    assert shown("prefill") == ["mc-prefill", "mc-prefill-2"]
    assert shown("mc-prefill-2") == ["mc-prefill-2"]
    assert shown("mc-master", "prefill-2") == ["mc-master", "mc-prefill-2"]
    assert main(["logs", "decode"]) == 3
    assert "there are: mc-master" in capsys.readouterr().err


def test_follow_shows_what_is_added_once(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("mc-master", "10:00:00 old\n10:00:01 half a li")
    adding = threading.Timer(0.2, write, ("mc-master", "ne\n10:00:02 new\n"))
    adding.start()
    assert main(["logs", "master", "--follow", "--for", "0.8"]) == 0
    adding.join()
    assert capsys.readouterr().out.splitlines() == [
        "10:00:00 old",
        "10:00:01 half a line",
        "10:00:02 new",
    ]


def test_file_that_was_begun_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\nthree\n")
    file = LogFile(DaemonRecord(name="mc-a", role="master", process=None, log=str(path)))
    assert file.tail(2) == ["two", "three"]
    path.write_text("four\n")
    assert file.added() == ["four"]
    path.unlink()
    assert file.added() == []


def test_of_a_long_file_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{number:09}\n" for number in range(200_000)))
    file = LogFile(DaemonRecord(name="mc-a", role="master", process=None, log=str(path)))
    began_s = time.monotonic()
    assert local_logs.last_lines([file], 2) == [("mc-a", "000199998"), ("mc-a", "000199999")]
    assert len(file.tail(1 << 20)) < 120_000
    assert time.monotonic() - began_s < 15


def test_line_without_an_end_is_cut_before_it_grows_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100_000)
    file = LogFile(DaemonRecord(name="mc-a", role="master", process=None, log=str(path)))
    assert [len(line) for line in file.added()] == [100_000]
