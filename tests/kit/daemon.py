"""A daemon as a process that tests kill, stop and start again, and waiting for what it does."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mcctl.cluster.ports import ReservedPorts

MAX_PORTS: Final = 400
"""An open file each; so many tests later nobody starts the daemon again."""
_ports = ReservedPorts()
_held: deque[int] = deque()


SLACK: Final = float(os.environ.get("TEST_SLACK", "1"))
"""So many times as long may things take here: .ci/run says so of a machine that it measured to be slow."""


def wait_for(is_true: Callable[[], object], timeout_s: float = 20.0, what: str = "it") -> Any:
    """What it returned at last. Fails the test when it takes longer."""
    deadline_s = time.monotonic() + timeout_s * SLACK
    while not (found := is_true()):
        assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.02)
    return found


def free_port() -> int:
    """Nobody else gets it, and a daemon may listen on it again and again, until MAX_PORTS later ones were asked for."""
    if len(_held) == MAX_PORTS:
        _ports.free(_held.popleft())
    _held.append(_ports.take())
    return _held[-1]


class Daemon:
    """Runs when made. `lines` is the stderr of all its starts."""

    def __init__(self, module: str, *settings: str) -> None:
        self._command = [sys.executable, "-m", module]
        for setting in settings:
            self._command += ["--set", setting]
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        """Again, with the same settings, once it has ended."""
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def find(self, pattern: str) -> str:
        """The first group of the latest line that it says, or has said, with this pattern."""

        def search() -> list[str]:
            return [m[1] for line in list(self.lines) if (m := re.search(pattern, line))]

        wait_for(lambda: search() or self.process.poll() is not None, 60.0, what=pattern)
        assert search(), "".join(self.lines)
        return search()[-1]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def said(self) -> str:
        return "".join(self.lines)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        """As systemd does: killed where SIGTERM does not end it in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.end()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit status; all that it said is in `lines`."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(20)
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line)
