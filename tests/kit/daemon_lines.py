"""A daemon by a line of a page, started as systemd would: it says on a socket when it is ready, and SIGTERM ends it."""

import shlex
import signal
import socket
import subprocess
from typing import Final

from kit.daemon import wait_for
from kit.examples import Place

END_S: Final = 30.0
_ANY_PORT: Final = {"node.listen": "tcp://127.0.0.1:0", "node.metrics": ""}
_INSTANCE: Final = {
    "engine.kind": "paced",
    "engine.profile": "fast.toml",
    "engine.kv_memory": "64MiB",
}
_SMALL: Final = {
    "mc-master": {"node.events": "tcp://127.0.0.1:0", "node.metrics": ""},
    "mc-cachenode": _ANY_PORT | {"segment.size": "16MiB", "segment.directory": ""},
    "mc-prefill": _ANY_PORT | _INSTANCE,
    "mc-decode": _ANY_PORT | _INSTANCE,
    "mc-gateway": {},
}
"""What any machine has, whatever else runs there. An engine of stated times: no such line is about the engine."""


def made_small(line: str, master: str, http_port: int) -> str:
    """With settings behind it: those above, and the two places that others must know."""
    name = line.split()[0]
    known: dict[str, str] = {"node.listen" if name == "mc-master" else "master.endpoint": master}
    if name == "mc-gateway":
        known["http.port"] = str(http_port)
    return " ".join([line, *(f"--set {k}={v}" for k, v in (_SMALL[name] | known).items())])


class LineOfDaemon:
    """Runs when made; what it says is in NAME.log of the place."""

    def __init__(self, place: Place, line: str) -> None:
        words = shlex.split(place.put_in(line))
        self.name = words[0]
        self._log = place.home / f"{self.name}.log"
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notified.setblocking(False)
        self._notified.bind(str(path := place.home / f"{self.name}.notify"))
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                words,
                stderr=log,
                env=place.env() | {"NOTIFY_SOCKET": str(path)},
                cwd=place.home,
            )

    def wait_until_ready(self) -> None:
        wait_for(self._says_ready, 60.0, what=f"{self.name} ready")

    def end(self) -> int:
        """As systemd does; its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(END_S)

    def said(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        self._notified.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _says_ready(self) -> bool:
        assert self._process.poll() is None, f"{self.name} ended: {self.said()}"
        try:
            return b"READY=1" in self._notified.recv(4096).split(b"\n")
        except BlockingIOError:
            return False
