"""The log of what tenants used, on a real disk that is full, after a crash, and with files that somebody moves."""

import json
import subprocess
import sys
from functools import partial
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


def line(request: str, *, tokens: int = 7, day: str = DAY) -> UsageLine:
    return UsageLine(
        time=f"{day}T12:00:00Z",
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
    return UsageLog(folder, lambda: now_s, "g")


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
    log = UsageLog(tmp_path, lambda: clock[0], "g")
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


def test_what_ran_when_it_was_killed_is_counted_by_the_next_life_once(tmp_path: Path) -> None:
    killed = open_log(tmp_path)
    grown = [line("running", tokens=3), line("running", tokens=5)]
    ended = line("ended")
    killed.running.follow(lambda: grown[0])
    killed.running.follow(lambda: ended)
    killed.running.follow(lambda: None)
    killed.running.note()
    del grown[0]
    killed.running.note()
    killed.append(ended)
    killed.running.close()  # as the kernel does
    for _ in range(2):  # the second one is killed before it has noted anything
        log = open_log(tmp_path)
        assert written(tmp_path) == ["ended", "running"]
        assert log.used("acme", DAY) == 7 + 5
        log.running.close()
    log.running.note()
    assert log.running.left_over() == []
    log.close()


def test_what_ran_yesterday_stands_under_its_day(tmp_path: Path) -> None:
    killed = open_log(tmp_path)
    for request in ("before-midnight", "ended-after-it"):
        killed.running.follow(partial(line, request))
    killed.running.note()
    killed.running.close()
    (tmp_path / "other").mkdir()
    over_midnight = open_log(tmp_path / "other", NOON_S + DAY_S)
    over_midnight.append(line("ended-after-it", day=NEXT_DAY))
    usage_file(tmp_path / "other", NEXT_DAY).rename(usage_file(tmp_path, NEXT_DAY))
    log = open_log(tmp_path, NOON_S + 2 * DAY_S)
    assert written(tmp_path) == ["before-midnight"]
    assert written(tmp_path, NEXT_DAY) == ["ended-after-it"]
    assert log.used("acme", "2026-12-02") == 0


def test_what_waits_for_room_outlives_a_kill_and_those_of_the_life_before_too(
    tmp_path: Path,
) -> None:
    killed = open_log(tmp_path)
    running = partial(line, "running")
    killed.running.follow(running)
    killed.note()
    killed.running.leave(running)
    usage_file(tmp_path, DAY).write_bytes(b"\n" * 4096)
    with room_for(4096):  # for the note alone
        killed.append(line("ended"))
        killed.append(running())
        killed.note()
        killed.running.close()
        again = open_log(tmp_path)
        again.note()
        again.running.close()
    log = open_log(tmp_path)
    log.note()
    assert written(tmp_path) == ["ended", "running"]
    assert (log.used("acme", DAY), log.running.left_over()) == (14, [])


@pytest.mark.parametrize(
    "bad",
    [
        b'{"x":' + b"[" * 100_000,
        encode_line(line("bad", day="../../../../x")),
        encode_line(line("bad", day="2026-11-3\0")),
        encode_line(line("bad", day="")),
        encode_line(line("bad", tokens=-5)),
        b"\0" * 4096,
        b"\xff{}",
        b"[]",
    ],
    ids=["deep", "path", "nul", "no-day", "negative", "zeros", "no-text", "list"],
)
def test_a_note_that_no_gateway_wrote_costs_only_itself(tmp_path: Path, bad: bytes) -> None:
    note = tmp_path / "running-g.jsonl"
    note.write_bytes(
        bad + b"\n" + encode_line(line("good")) + b"\n" + encode_line(line("torn"))[:-9]
    )
    usage_file(tmp_path, DAY).write_bytes(bad + b"\n")
    log = open_log(tmp_path)
    log.append(line("next"))
    assert (log.num_waiting, written(tmp_path), log.used("acme", DAY)) == (0, ["good", "next"], 14)


def test_answers_of_a_gateway_that_lives_are_not_taken_over_by_another_of_its_name(
    tmp_path: Path,
) -> None:
    living = open_log(tmp_path)
    living.running.follow(partial(line, "running"))
    living.note()
    begin = "from pathlib import Path; from daemons.mc_gateway.usage import UsageLog; "
    begin += f"UsageLog(Path({str(tmp_path)!r}), lambda: {NOON_S}, 'g')"
    done = subprocess.run(
        [sys.executable, "-c", begin], capture_output=True, text=True, timeout=60, check=False
    )
    assert "ConfigError: the usage of a gateway of this `node.id` in" in done.stderr
    assert (written(tmp_path), len(living.running.left_over())) == ([], 1)


def test_an_answer_that_has_ended_is_not_noted_any_more_and_a_full_disk_keeps_the_note_before(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    follow = partial(line, "a")
    log.running.follow(follow)
    log.running.note()
    with room_for(0):
        log.running.follow(partial(line, "b"))
        log.running.note()
    assert [each.request for each in log.running.left_over()] == ["a"]
    log.running.leave(follow)
    log.close()
    assert [each.request for each in log.running.left_over()] == ["b"], "it ran until the end"
