"""How much memory a process of this host uses, and has used."""

from pathlib import Path


def peak_bytes(pid: int) -> int:
    """Its highest resident size; 0 when it is gone."""
    return _status_bytes(pid, "VmHWM:")


def resident_bytes(pid: int) -> int:
    """Its resident size now; 0 when it is gone."""
    return _status_bytes(pid, "VmRSS:")


def _status_bytes(pid: int, field: str) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0
