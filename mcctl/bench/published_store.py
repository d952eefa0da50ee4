"""The published Mooncake Store on this machine, over TCP on loopback, for as long as a benchmark needs it."""

import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from daemons.core.errors import ConfigError, Unavailable
from daemons.core.units import GIB
from mcctl import paths
from mcctl.bench.patience import PATIENCE_S
from mcctl.cluster.die_with_parent import tied_to_us
from mcctl.cluster.ports import ReservedPorts

_SEGMENT_BYTES: Final = GIB
_PEER: Final = Path(__file__).with_name("published_peer.py")


def published_master(python: Path) -> Path:
    """The program beside this Python. Raises ConfigError."""
    found = python.parent / "mooncake_master"
    if not found.exists():
        raise ConfigError(
            f"{found} is not there: make an environment, pip install "
            "mooncake-transfer-engine-non-cuda in it, and name its bin/python"
        )
    return found


class PublishedStore:
    """Its master, one process that lends memory, and one client; they end with this one.

    `python` has the wheel mooncake-transfer-engine, whose mooncake_master lies beside it. Raises ConfigError where not.
    """

    def __init__(self, python: Path) -> None:
        self._python = python
        self._master_binary = published_master(python)
        self._ports = ReservedPorts()
        self._port, self._metrics_port = self._ports.take(), self._ports.take()
        self._directory = Path(tempfile.mkdtemp(prefix="published-", dir=paths.runtime_dir()))
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        # Whether that program listens on a port that somebody keeps for it is its own affair.
        for port in (self._port, self._metrics_port):
            self._ports.free(port)
        try:
            self._start(
                [
                    str(self._master_binary),
                    "--rpc_address=127.0.0.1",
                    f"--rpc_port={self._port}",
                    "--metrics_host=127.0.0.1",
                    f"--metrics_port={self._metrics_port}",
                ]
            )
            peer = [str(self._python), str(_PEER), f"127.0.0.1:{self._port}"]
            self._start_peer([*peer, "segment", str(_SEGMENT_BYTES)])
            client = self._start_peer([*peer, "client"])
            self._hear(client, PATIENCE_S)  # filled
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def measure(self, what: str, count: int) -> list[float]:
        """Seconds of each call: put, get, exists, batch32 or batch128."""
        client = self._processes[-1]
        _pipe(client.stdin).write(f"{what} {count}\n".encode())
        seconds: list[float] = json.loads(self._hear(client, PATIENCE_S))
        return seconds

    def _start_peer(self, command: list[str]) -> "subprocess.Popen[bytes]":
        """Again while its master is not listening yet."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            process = self._start(command)
            try:
                self._hear(process, PATIENCE_S)
            except Unavailable:
                if time.monotonic() > deadline_s:
                    raise
                self._processes.remove(process)
                process.kill()
                process.wait()
                time.sleep(0.5)
            else:
                return process

    def _start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        log = self._directory / f"{len(self._processes)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                tied_to_us(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                bufsize=0,  # a line that was read ahead would never be selected
                env=os.environ | {"MC_TCP_BIND_ADDRESS": "127.0.0.1", "MC_LOG_LEVEL": "1"},
            )
        self._processes.append(process)
        return process

    def _hear(self, process: "subprocess.Popen[bytes]", timeout_s: float) -> str:
        """The next line that is meant for us. Raises Unavailable when there is none in time."""
        out = _pipe(process.stdout)
        deadline_s = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline_s - time.monotonic())):
                line = out.readline()
                if not line:
                    break
                if line.startswith(b"= "):
                    return line[2:].decode().strip()
        raise Unavailable(f"the published store does not answer: {self._said()}")

    def _said(self) -> str:
        texts = [path.read_text(errors="replace") for path in sorted(self._directory.glob("*.log"))]
        return " | ".join(text.strip()[-300:] for text in texts if text.strip())

    def _end(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                _pipe(pipe).close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _pipe(stream: "IO[bytes] | None") -> "IO[bytes]":
    assert stream is not None, "it was asked for"
    return stream
