"""The log of what tenants used, on a real disk that is full, after a crash, and with files that somebody moves."""

import json
from pathlib import Path

import pytest
from kit.full_disk import room_for

from daemons.config.usage import UsageLine, encode_line, read_usage, usage_file
from daemons.core.errors import ConfigError
from daemons.mc_gateway import usage
from daemons.mc_gateway.usage import UsageLog

DAY, NEXT_DAY = "2026-11-30", "2026-12-01"
NOON_S = 1_796_040_000.0
DAY_S = 86_400


def line(request: str, *, tokens: int = 7) -> UsageLine:
    return UsageLine(
        time="",
        gateway="g",
        tenant="acme",
        key="mc-1",
        model="m",
        request=request,
        status=200,
        prompt_tokens=tokens,
        cached_tokens=0,
        completion_tokens=0,
    )


def written(folder: Path, day: str = DAY) -> list[str]:
    return [each.request for each in read_usage(usage_file(folder, day))]


def open_log(folder: Path, now_s: float = NOON_S) -> UsageLog:
    return UsageLog(folder, lambda: now_s)


@pytest.mark.parametrize("left", [0, 1, 40])
def test_what_a_full_disk_had_no_room_for_is_written_once_when_there_is(
    tmp_path: Path, left: int
) -> None:
    log = open_log(tmp_path)
    log.append(line("a"))
    with room_for(usage_file(tmp_path, DAY).stat().st_size + left):
        log.append(line("b"))
        log.append(line("c"))
        assert (log.num_waiting, log.num_lost, written(tmp_path)) == (2, 0, ["a"])
    log.flush()
    assert (log.num_waiting, written(tmp_path)) == (0, ["a", "b", "c"])
    log.close()
    assert log.used("acme", DAY) == 21, "counted at once, and once"


def test_more_than_may_wait_loses_the_oldest_and_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MAX_WAITING", 2)
    log = open_log(tmp_path)
    with room_for(0):
        for name in "abc":
            log.append(line(name))
    log.close()
    assert (log.num_lost, written(tmp_path)) == (1, ["b", "c"])


def test_a_line_that_a_crash_cut_off_costs_only_itself(tmp_path: Path) -> None:
    usage_file(tmp_path, DAY).write_bytes(
        encode_line(line("a")) + b"\n" + encode_line(line("b"))[:30]
    )
    log = open_log(tmp_path)
    assert log.used("acme", DAY) == 7
    log.append(line("c"))
    log.close()
    assert written(tmp_path) == ["a", "c"]


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(line("a"))
    usage_file(tmp_path, DAY).rename(tmp_path / "kept")
    log.append(line("b"))
    usage_file(tmp_path, DAY).unlink()
    log.append(line("c"))
    log.close()
    assert json.loads((tmp_path / "kept").read_text())["request"] == "a"
    assert written(tmp_path) == ["c"]


def test_a_line_that_waits_over_midnight_stands_under_its_own_day(tmp_path: Path) -> None:
    clock = [NOON_S]
    log = UsageLog(tmp_path, lambda: clock[0])
    with room_for(0):
        log.append(line("a"))
        clock[0] += DAY_S
        log.append(line("b"))
    log.close()
    assert (written(tmp_path), written(tmp_path, NEXT_DAY)) == (["a"], ["b"])
    assert (log.used("acme", DAY), log.used("acme", NEXT_DAY)) == (0, 7)


def test_a_place_where_nothing_can_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    usage_file(tmp_path, DAY).mkdir()
    with pytest.raises(ConfigError, match="usage"):
        open_log(tmp_path)
