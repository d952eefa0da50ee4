"""Where a daemon keeps its files: what systemd gives it, else the user's own directories."""

import os
import tempfile
from pathlib import Path


def runtime_dir(configured: str = "") -> Path:
    """For sockets: the config's choice, $RUNTIME_DIRECTORY, or a private directory per user."""
    chosen = configured or os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"mooncake-{os.getuid()}"
