"""Sizes and durations as people write them in a config file or on a command line."""

import re

from daemons.core.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
MAX_SIZE = 1 << 62
"""No size is as large: sums of a few of them still fit what messages and files hold."""

_MAX_DIGITS = 18
_ASCII = re.ASCII | re.IGNORECASE
"""Else the long s and the sign of the Kelvin are an s and a k, and no unit of any table."""

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|[KMGT]i?B?)?\s*$", _ASCII)
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)\s*", _ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_FACTORS = {"": 1, "B": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}


def parse_size(text: str | int) -> int:
    """Bytes of "2GiB", "512 MiB", "64K" or a plain number; every prefix is a power of 1024."""
    if isinstance(text, int):
        size: float = text
    else:
        match = _SIZE.match(text)
        if match is None:
            raise ConfigError(f"size {text[:80]!r} is not understood; write it like 512MiB or 2GiB")
        size = float(match[1]) * _FACTORS[(match[2] or "")[:1].upper()]
    if size >= MAX_SIZE:
        raise ConfigError(
            f"size {str(text)[:80]} is more than anybody has; write it like 512MiB or 2GiB"
        )
    return int(size)


def parse_whole(text: str) -> int | None:
    """A number of 0 to 9 alone, of so few digits that messages hold it; None for all else."""
    is_one = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if is_one else None


def parse_duration(text: str | float) -> float:
    """Seconds of "500ms", "90s", "10m", "1h30m", "7d", or of a plain number."""
    try:
        return float(text)
    except ValueError:
        pass
    parts = _DURATION.findall(str(text))
    if not parts or _DURATION.sub("", str(text)):
        raise ConfigError(
            f"duration {str(text)[:80]!r} is not understood; write seconds, or it like 500ms, 90s, 10m, 1h or 7d"
        )
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)


def format_size(num_bytes: float) -> str:
    """Three significant digits with a binary prefix: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def format_usage(used_bytes: float, capacity_bytes: float) -> str:
    """1.5 MiB of 2.0 MiB; where more is used than may be for long, how much has to go."""
    text = f"{format_size(used_bytes)} of {format_size(capacity_bytes)}"
    beyond = used_bytes - capacity_bytes
    return f"{text} ({format_size(beyond)} of it is to be freed)" if beyond > 0 else text


def format_count(number: int, noun: str) -> str:
    """1 block, 2 blocks: of nouns that take an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_seconds(seconds: float) -> str:
    """Always seconds, where one stands below the other."""
    return f"{seconds:,.2f} s" if seconds >= 0.1 else f"{seconds:.4f} s"


def format_milliseconds(seconds: float) -> str:
    """Always milliseconds, where one stands below the other."""
    digits = 1 if seconds >= 0.01 else 3
    return f"{seconds * 1000:,.{digits}f} ms"


def format_duration(seconds: float) -> str:
    """Milliseconds below one second, seconds below two minutes, then minutes."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
