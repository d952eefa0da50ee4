"""Trace files: what is read, and how a bad line is named."""

import json
from pathlib import Path

import pytest

from daemons.core.errors import ConfigError, NotFound
from daemons.simulation.trace import at_rate, read_trace


def line(**changes: object) -> str:
    row = {"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]}
    return json.dumps(row | changes)


def test_requests_in_order_from_time_zero_without_their_partial_block(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{line(timestamp=9000)}\n\n{line(hash_ids=[4, 5, 6])}\n")
    first, second = read_trace(path)
    assert (first.arrival_s, second.arrival_s) == (0.0, 6.0)
    assert (first.blocks, second.blocks) == ((4, 5), (0, 1))
    assert (first.number, second.number) == (0, 1)
    assert at_rate([first, second], 2.0)[1].arrival_s == 3.0
    assert read_trace(path, limit=1)[0].blocks == (0, 1)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        (line(hash_ids=[1]), "3 blocks"),
        (line(hash_ids=[1, -2, 3]), "not negative"),
        (line(timestamp=-1), "not negative"),
        (line(input_length=0, hash_ids=[]), "make no request"),
        (line(output_length=-1), "make no request"),
        (line(input_length="x"), "input_length"),
        (line()[:-1] + ', "more": ' + "[" * 5000 + "]" * 5000 + "}", "recursion"),
        (" " * (1 << 20) + line(), "longer than"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{line()}\n{bad}\n")
    with pytest.raises(ConfigError, match="line 2") as error:
        read_trace(path)
    assert said in error.value.message


def test_times_that_a_double_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{line()}\n{line(timestamp=1e300)}\n")
    with pytest.raises(ConfigError, match="can be replayed"):
        read_trace(path)
    path.write_text(f"{line()}\n{line(timestamp=1e11)}\n")
    with pytest.raises(ConfigError, match="can be replayed"):
        at_rate(read_trace(path), 0.001)


def test_no_file_and_no_request(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_trace(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="no request"):
        read_trace(tmp_path / "empty")
