"""What a process asks of its host at its start."""

import contextlib
import resource
from typing import Final

FILES: Final = 65_536
"""As in the units: every connection is a file, and a shell's 1024 are few for a port that anybody may open."""
_KEPT_FILES: Final = 2048
"""For what a process opens itself, and for connections that were taken in one turn before any of them is counted."""


def raise_file_limit() -> None:
    """Up to FILES, or to what this user may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def room_for_connections() -> int:
    """How many may be open at once, so that files are left for the process itself."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if soft == resource.RLIM_INFINITY else soft
    return max(most - _KEPT_FILES, most // 2)
