"""What `engine.dtype = "auto"` is on a CPU: of one rule, for the engine and for who must know before it starts."""

from pathlib import Path
from typing import Final, Literal

_CPUINFO: Final = Path("/proc/cpuinfo")
_X86: Final = frozenset({"avx512bw", "avx512dq", "avx512vl"})
"""With these oneDNN multiplies bfloat16; without, torch takes several times as long as for float32."""
_ARM: Final = frozenset({"bf16"})


def host_dtype(cpuinfo: Path = _CPUINFO) -> Literal["bfloat16", "float32"]:
    """float32 where the CPU has no instructions for bfloat16, or cannot be read."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "float32"
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags = set(value.split())
            return "bfloat16" if flags >= _X86 or flags >= _ARM else "float32"
    return "float32"
