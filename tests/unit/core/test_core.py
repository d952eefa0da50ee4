"""Errors, units, ids, clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.core.clock import ManualClock, monotonic
from daemons.core.errors import FAMILIES, ConfigError, McError, NotFound, family_of
from daemons.core.ids import new_epoch, new_put_id, new_request_id, short
from daemons.core.units import (
    format_count,
    format_duration,
    format_milliseconds,
    format_seconds,
    format_size,
    parse_duration,
    parse_size,
    parse_whole,
)


class LeafNotFound(NotFound):
    """A leaf lives beside the code that raises it."""


def test_a_leaf_belongs_to_its_family() -> None:
    assert family_of(LeafNotFound("x")) == "not_found"
    assert family_of(McError("x")) == "error"
    assert all(family.code == code for code, family in FAMILIES.items())
    assert LeafNotFound("why", retry_after_ms=3).retry_after_ms == 3


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 << 30), ("512 MiB", 512 << 20), ("64K", 65536), ("1.5k", 1536), ("7", 7), (9, 9)],
)
def test_sizes_are_powers_of_1024(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "1 GiBB", "-1", "1e9", "ten", "9" * 400, f"{1 << 62}", "1\u212a"]
)
def test_other_sizes_say_how_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match="512MiB"):
        parse_size(text)


@given(st.integers(0, 1 << 50))
def test_formatted_sizes_parse_back_to_about_the_same(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.06, abs=1)


def test_durations_read_well() -> None:
    assert [format_duration(s) for s in (0.0012, 0.25, 3.456, 600)] == [
        "1.2 ms",
        "250 ms",
        "3.46 s",
        "10.0 min",
    ]


def test_durations_of_a_column_have_one_unit() -> None:
    times_s = (0.00012, 0.0456, 3.456, 1234.5)
    assert [format_seconds(s) for s in times_s] == ["0.0001 s", "0.0456 s", "3.46 s", "1,234.50 s"]
    assert [format_milliseconds(s) for s in times_s[:3]] == ["0.120 ms", "45.6 ms", "3,456.0 ms"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("0.5", 0.5),
        (" 90 s", 90.0),
        ("500ms", 0.5),
        ("10m", 600.0),
        ("10min", 600.0),
        ("1h", 3600.0),
        ("1h30m", 5400.0),
        ("1.5H", 5400.0),
        ("7d", 604800.0),
        (2.5, 2.5),
    ],
)
def test_durations_are_read_with_and_without_unit(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "h", "1y", "1h x", "-1h", "one", "1h 30", "1\u017f", "5m\u017f"]
)
def test_what_is_no_duration_is_told_how_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match="like 500ms, 90s, 10m, 1h or 7d"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1_0", "1.0", " 1", "\u00b2", "\u0664", "9" * 5000]
)
def test_a_number_is_of_few_digits_and_nothing_else(text: str) -> None:
    assert parse_whole(text) is None
    assert parse_whole("007") == 7


def test_ids_are_new_each_time() -> None:
    assert len({new_request_id() for _ in range(100)}) == 100
    assert len(new_put_id()) == 16
    assert all(0 < new_epoch() < 2**56 for _ in range(100))
    assert (short(b"\xab" * 16), short("0123456789")) == ("abababab", "01234567")


def test_manual_clock_moves_when_told() -> None:
    clock = ManualClock(5)
    clock.advance(1.5)
    assert clock() == 6.5
    assert monotonic() <= monotonic()


def test_one_thing_is_not_several() -> None:
    assert [format_count(n, "block") for n in (0, 1, 2)] == ["0 blocks", "1 block", "2 blocks"]
