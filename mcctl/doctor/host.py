"""Facts of this host that the checks ask for, read once. Nothing is changed, and root is not needed."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mcctl import systemd

_TIME_ERROR: Final = 5
"""adjtimex: the clock is not synchronized (TIME_ERROR)."""
_TIMEX_BYTES: Final = 512
"""More than struct timex has anywhere; mode 0 only reads."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine itself."""

    memory_bytes: int
    is_clock_synchronized: bool | None
    """None where the kernel does not say."""
    systemd_version: int | None = None
    """None where there is no systemd."""
    hugepages: Mapping[int, int] = field(default_factory=dict)
    """Set apart by the kernel, by their size in bytes."""


def read_host() -> Host:
    """As it is now."""
    return Host(
        _memory_bytes(Path("/proc/meminfo")),
        _is_clock_synchronized(),
        systemd.running_version(),
        _hugepages(Path("/sys/kernel/mm/hugepages")),
    )


def _memory_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    return 0


def _hugepages(directory: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for pool in directory.glob("hugepages-*kB"):
        size = int(pool.name.removeprefix("hugepages-").removesuffix("kB")) << 10
        found[size] = int((pool / "nr_hugepages").read_text())
    return found


def _is_clock_synchronized() -> bool | None:
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(
            ctypes.create_string_buffer(_TIMEX_BYTES)
        )
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR
