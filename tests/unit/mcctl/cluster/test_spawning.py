"""What is kept of a daemon of a local cluster: where its files are, and its last words."""

from pathlib import Path

import pytest

from mcctl.cluster.spawning import config_path, last_words, log_path


def test_a_daemon_has_its_files_by_its_name(tmp_path: Path) -> None:
    assert config_path(tmp_path, "mc-prefill-1") == tmp_path / "mc-prefill-1.toml"
    assert log_path(tmp_path, "mc-prefill-1") == tmp_path / "mc-prefill-1.log"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "(nothing)"),
        (b"\n  \n", "(nothing)"),
        (b"joined\nTraceback (most recent call last):\n  File\nOSError: gone\n\n", "OSError: gone"),
        (b"not \xff UTF-8", "not \N{REPLACEMENT CHARACTER} UTF-8"),
    ],
)
def test_last_words_are_the_last_line_that_says_something(
    tmp_path: Path, said: bytes, words: str
) -> None:
    log = tmp_path / "mc-master.log"
    log.write_bytes(said)
    assert last_words(log) == words


def test_who_has_no_log_said_nothing(tmp_path: Path) -> None:
    assert last_words(tmp_path / "mc-master.log") == "(nothing)"
