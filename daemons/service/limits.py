"""What a process asks of its host at its start."""

import contextlib
import resource
from typing import Final

FILES: Final = 65_536
"""As in the units: every connection is a file, and a shell's 1024 are few for a port that anybody may open."""


def raise_file_limit() -> None:
    """Up to FILES, or to what this user may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
