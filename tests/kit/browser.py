"""A page as a real browser shows it. Skips, with the reason, where no Chromium is installed."""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

_FLAGS = [
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
]


@dataclass(frozen=True, slots=True)
class Seen:
    dom: str
    """After its scripts have run."""
    console: list[str]
    """What they, and the browser's own guards, complained of."""

    def text(self, identifier: str) -> str:
        """Without the markup, of the element with this id; it must have no child of its own kind."""
        found = re.search(rf'<(\w+)[^>]* id="{identifier}"[^>]*>(.*?)</\1>', self.dom, re.DOTALL)
        assert found is not None, f"no #{identifier} in the page"
        return re.sub(r"<[^>]*>", " ", found[2])


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    return found


def see(url: str, *, run_s: float = 3.0, flags: tuple[str, ...] = ()) -> Seen:
    """`run_s` is of the page's own clock, which runs ahead while nothing is under way."""
    with tempfile.TemporaryDirectory(prefix="mc-browser-") as profile:
        done = subprocess.run(
            [
                chromium(),
                *_FLAGS,
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
                f"--user-data-dir={profile}",
                f"--virtual-time-budget={round(1000 * run_s)}",
                *flags,
                "--dump-dom",
                url,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"HOME": str(Path(profile))},
        )
    assert done.returncode == 0, done.stderr
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(done.stdout, console)
