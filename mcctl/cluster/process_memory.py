"""How much memory processes of this host use."""

from collections.abc import Iterable
from pathlib import Path


def private_bytes(pids: Iterable[int]) -> int:
    """Their anonymous memory and their share of files, each page once. Without shared memory: see the config for it."""
    fields = ("Pss_Anon:", "Pss_File:", "SwapPss:")
    return sum(_field_bytes(f"/proc/{pid}/smaps_rollup", field) for pid in pids for field in fields)


def proportional_bytes(pid: int) -> int:
    """Its pages, of shared ones its share: over all that map them each counts once. 0 when it is gone."""
    path = f"/proc/{pid}/smaps_rollup"
    return _field_bytes(path, "Pss:") + _field_bytes(path, "SwapPss:")


def _field_bytes(path: str, field: str) -> int:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0
