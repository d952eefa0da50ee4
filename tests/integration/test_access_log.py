"""What a gateway writes of requests is a trace that the simulator replays."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.test_gateway import MODEL, Bench, ScriptedDecode, running_gateway, says
from kit.full_disk import room_for

from daemons.config.mc_gateway import AccessLogSection
from daemons.core.errors import ConfigError
from daemons.mc_gateway.access_log import open_access_log
from daemons.mc_gateway.day_file import DayFile
from daemons.mc_gateway.metrics import GatewayMetrics
from daemons.simulation.capacity import hit_fraction
from daemons.simulation.trace import read_trace
from mcctl.main import main

DOCUMENT = "A document that is asked about again and again. " * 30
"""Of two whole blocks of 512 tokens, a byte each."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "access"
    made.mkdir()
    return made


@pytest.fixture
def bench(tmp_path: Path, folder: Path) -> Iterator[Bench]:
    decodes = [ScriptedDecode("decode-a", says("an answer"))]
    log = AccessLogSection(directory=str(folder))
    with running_gateway(tmp_path, decodes, access_log=log) as running:
        yield running


def test_an_access_log_is_a_trace(
    bench: Bench, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for question in ("Who wrote it?", "When?"):
        body = {"model": MODEL, "prompt": DOCUMENT + question}
        assert bench.post(body, "/v1/completions").status_code == 200
    bypass = {"model": MODEL, "prompt": DOCUMENT, "kv_cache": "bypass", "max_tokens": 3}
    assert bench.post(bypass, "/v1/completions").status_code == 200
    assert bench.post({"model": "none", "prompt": "x"}, "/v1/completions").status_code == 404
    [path] = folder.iterdir()
    assert DOCUMENT[:10] not in path.read_text()
    first, second, third = [json.loads(line) for line in path.read_text().splitlines()]
    assert (first["input_length"], first["model"]) == (len(DOCUMENT) + 13, MODEL)
    assert (first["output_length"], third["output_length"]) == (10, 3)
    assert first["hash_ids"][:2] == second["hash_ids"][:2] == third["hash_ids"][:2]
    assert len({each["hash_ids"][2] for each in (first, second, third)}) == 3
    requests = read_trace(path)
    assert [request.blocks for request in requests] == [tuple(first["hash_ids"][:2])] * 3
    assert hit_fraction(requests, 1_000_000) > 0.4
    assert main(["simulate", "plan", str(path), "--nodes", "2", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_requests"] == 3


def test_a_day_has_its_file_and_no_more_than_it_may(tmp_path: Path) -> None:
    now_s = 86_400.0
    file = DayFile(
        lambda day: tmp_path / day, lambda: now_s, what="lines", max_bytes=len(b"line one\n") * 2
    )
    for _ in range(3):
        file.append(b"line one")
    assert file.num_lost == 1
    now_s += 86_400
    file.append(b"line two")
    file.close()
    again = DayFile(lambda day: tmp_path / day, lambda: now_s, what="lines", max_bytes=17)
    again.append(b"line two")
    again.close()
    assert again.num_lost == 1
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {"1970-01-02": "line one\n" * 2, "1970-01-03": "line two\n"}


def test_a_file_that_was_moved_away_or_deleted_is_begun_anew(tmp_path: Path) -> None:
    file = DayFile(lambda day: tmp_path / day, lambda: 0.0, what="lines", max_bytes=len(b"one\n"))
    today = tmp_path / "1970-01-01"
    file.append(b"one")
    today.rename(tmp_path / "moved")
    file.append(b"two")
    assert (tmp_path / "moved").read_text() == "one\n"
    assert today.read_text() == "two\n"
    today.unlink()
    file.append(b"six")
    file.close()
    assert today.read_text() == "six\n"
    assert file.num_lost == 0


def test_a_line_that_had_no_room_takes_nothing_of_another_gateway_with_it(tmp_path: Path) -> None:
    """Both write to one file of a disk that becomes full."""
    one, other = (DayFile(lambda day: tmp_path / day, lambda: 0.0, what="lines") for _ in range(2))
    other.append(b"theirs")
    with room_for(len(b"theirs\n") + 3):
        one.append(b"ours")
    one.append(b"after")
    assert one.num_lost == 1
    assert (tmp_path / "1970-01-01").read_text() == "theirs\nafter\n"
    one.close()
    other.close()


def test_a_folder_that_is_not_there_is_said_at_the_start(tmp_path: Path) -> None:
    section = AccessLogSection(directory=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"`access_log\.directory`: cannot write in .*none"):
        open_access_log(section, GatewayMetrics())
    assert open_access_log(AccessLogSection(), GatewayMetrics()) is None
