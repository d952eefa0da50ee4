"""What a process of this host has used so far, as Linux tells it."""

import os
from pathlib import Path

from daemons.core.errors import Unavailable


def cpu_s(pid: int) -> float:
    """CPU seconds of all its threads, in steps of about 10 ms."""
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Memory that is resident now."""
    return int(_read(pid, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        raise Unavailable(f"process {pid} ended while it was measured; its log says why") from None
