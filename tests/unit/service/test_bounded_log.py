"""What others can cause without end is a few lines a minute, with counts."""

import io
import logging
from collections.abc import Iterator

import pytest

from daemons.core.clock import ManualClock
from daemons.service.bounded_log import BOUNDED, MAX_TEXTS, WINDOW_S, BoundedHandler

REFUSED = "refused node=%s why=%s"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(clock: ManualClock, out: io.StringIO) -> Iterator[logging.Logger]:
    logger = logging.getLogger("bounded")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handler = BoundedHandler(clock)
    handler.setStream(out)
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)
    handler.close()


def lines(out: io.StringIO) -> list[str]:
    """Since the last call."""
    said = out.getvalue().splitlines()
    out.seek(0)
    out.truncate()
    return said


def test_same_warning_is_one_line_a_minute_with_its_count(
    log: logging.Logger, clock: ManualClock, out: io.StringIO
) -> None:
    line = "refused node=a why=revoked"
    for _ in range(3):
        for _ in range(60):
            log.warning(REFUSED, "a", "revoked")
            clock.advance(WINDOW_S / 60)
    assert lines(out) == [line, f"{line} again=59", f"{line} again=60"]
    clock.advance(3 * WINDOW_S)
    log.info("something else")
    assert lines(out) == [f"{line} again=60", "something else"]
    clock.advance(WINDOW_S)
    log.warning(REFUSED, "a", "revoked")
    assert lines(out) == [line], "a new one is said at once"


def test_each_node_has_its_line_and_a_crowd_of_them_is_counted(
    log: logging.Logger, clock: ManualClock, out: io.StringIO
) -> None:
    for number in range(500):
        log.warning(REFUSED, number, "unknown")
    log.error("disk full")
    said = lines(out)
    assert len(said) == MAX_TEXTS + 1
    assert said[-1] == "disk full"
    clock.advance(WINDOW_S)
    log.info("beat")
    assert lines(out) == [f"left out count={500 - MAX_TEXTS} like={REFUSED!r}", "beat"]


def test_what_is_no_warning_is_written_each_time(log: logging.Logger, out: io.StringIO) -> None:
    for _ in range(3):
        log.info("config reloaded")
    assert lines(out) == ["config reloaded"] * 3


def test_what_others_cause_is_bounded_at_info_too(
    log: logging.Logger, clock: ManualClock, out: io.StringIO
) -> None:
    for _ in range(50):
        log.info("node alive again node=%s", "a", extra=BOUNDED)
    assert lines(out) == ["node alive again node=a"]
    clock.advance(WINDOW_S)
    log.info("beat")
    assert lines(out) == ["node alive again node=a again=49", "beat"]


def test_what_is_owed_is_said_at_the_end_and_kinds_without_end_are_forgotten(
    log: logging.Logger, out: io.StringIO
) -> None:
    for number in range(1000):
        log.warning("a kind of its own %d" % number)  # noqa: UP031, G002
    log.warning(REFUSED, "a", "revoked")
    log.warning(REFUSED, "a", "revoked")
    log.handlers[0].close()
    assert lines(out)[-1] == "refused node=a why=revoked again=1"


def test_another_error_under_the_same_words_is_written_with_its_traceback(
    log: logging.Logger, out: io.StringIO
) -> None:
    for error in (KeyError("a"), ValueError("b"), KeyError("a")):
        try:
            raise error
        except (KeyError, ValueError):
            log.exception("handler failed")
    said = lines(out)
    assert said.count("handler failed") == 2
    assert [each for each in said if "Error: " in each] == ["KeyError: 'a'", "ValueError: b"]
    log.handlers[0].close()
    assert lines(out) == ["handler failed error=KeyError('a') again=1"]


def test_a_warning_that_does_not_fit_its_values_does_not_end_who_says_it(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = logging.LogRecord("bounded", logging.WARNING, __file__, 1, REFUSED, ("a",), None)
    log.handlers[0].handle(wrong)
    assert "not enough arguments" in capsys.readouterr().err
