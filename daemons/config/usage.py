"""What gateways write of each answer, a line of JSON, in a file for each day (UTC): usage-YYYY-MM-DD.jsonl."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from daemons.core.errors import ConfigError

_DAY_S: Final = 86_400

_Time = Annotated[str, msgspec.Meta(pattern=r"\A\d{4}-\d\d-\d\dT")]
"""Begins with the day, which names a file."""
_Count = Annotated[int, msgspec.Meta(ge=0)]


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Fields are only ever added, with a default."""

    time: _Time
    gateway: str
    tenant: str
    key: str
    model: str
    request: str
    status: int
    prompt_tokens: _Count
    cached_tokens: _Count
    completion_tokens: _Count
    cost: float = 0.0


encode_line = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(UsageLine).decode


def day_of(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(unix_s))


def day_ends_in_s(unix_s: float) -> float:
    return _DAY_S - unix_s % _DAY_S


def usage_file(directory: Path, day: str) -> Path:
    return directory / f"usage-{day}.jsonl"


def read_usage(path: Path) -> Iterator[UsageLine]:
    """Lines that a crash cut off, or that are none, are passed over; a missing file has none. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    yield _decode_line(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    continue
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
