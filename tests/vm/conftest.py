"""Two processes and two pairs of Soft-RoCE devices. `tests/vm/run .venv/bin/python -m pytest tests/vm` has them.

With REQUIRE=rdma in the environment a test that cannot run fails instead of being skipped.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vm import measured
from vm.peer import SIZE_BYTES

from daemons.core.ids import Epoch, HostId, new_epoch
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.transfer.transports.rdma import RdmaTransport, Retries, why_unavailable

HERE = Path(__file__).parent
NAMES = ("rxe0", "rxe1")
PEER_NAMES = ("rxe0p", "rxe1p")
STEADY = Retries(timeout=16, count=5)
"""1.6 s nominal: for tests in which one path is to fail and another is not."""
PATIENT = Retries(timeout=18, count=6)
"""A loaded machine that emulates a CPU may not answer for seconds."""
IMPATIENT = Retries(timeout=14, count=3)
"""0.27 s nominal."""


def _why_not() -> str | None:
    if not all(Path("/sys/class/infiniband", name).exists() for name in NAMES + PEER_NAMES):
        return "needs the Soft-RoCE devices that tests/vm/run makes"
    return why_unavailable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    why = _why_not() if mine else None
    for item in mine:
        item.add_marker(pytest.mark.rdma)
        if why and "rdma" not in os.environ.get("REQUIRE", "").split(","):
            item.add_marker(pytest.mark.skip(reason=why))


class Nursery:
    """Starts peers without the seconds that a Python takes to import everything on an emulated CPU."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "peer.py"), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=os.environ | {"PYTHONPATH": str(HERE.parent.parent)},
        )
        theirs.close()

    def start(self, secret: str = "") -> "Peer":
        retries = {"timeout": PATIENT.timeout, "count": PATIENT.count}
        arguments = {"devices": PEER_NAMES, "retries": retries, "secret": secret}
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [json.dumps(arguments).encode()], [theirs.fileno()])
        return Peer(ours)

    def close(self) -> None:
        self._control.close()
        self._process.wait(30)


class Peer:
    """The other process; `ask` has it do something."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lines = channel.makefile("rw")
        self._lock = threading.Lock()
        hello = self._answer()
        self.pid = hello["pid"]
        self.address = DataAddress(
            host_id=HostId("other"),
            unix_path="",
            tcp="",
            epoch=Epoch(hello["epoch"]),
            rdma=hello["rdma"],
        )

    def ask(self, *words: object) -> Any:
        with self._lock:
            self._lines.write(" ".join(map(str, words)) + "\n")
            self._lines.flush()
            return self._answer()

    def region(self, region_id: int, size_bytes: int = SIZE_BYTES) -> RegionRef:
        return RegionRef(address=self.address, region_id=region_id, size_bytes=size_bytes)

    @property
    def source(self) -> RegionRef:
        return self.region(1)

    @property
    def writable(self) -> RegionRef:
        return self.region(2)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Returns when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(self.pid, signal.SIGKILL)
                time.sleep(0.01)

    def stop(self) -> None:
        self.kill()
        self._lines.close()
        self._channel.close()

    def _answer(self) -> Any:
        line = self._lines.readline()
        assert line, "the peer died"
        return json.loads(line)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    why = _why_not()
    if why:
        pytest.fail(f"REQUIRE=rdma, but {why}")
    started = Nursery()
    yield started
    started.close()


@pytest.fixture(scope="module")
def peer(nursery: Nursery) -> Iterator[Peer]:
    started = nursery.start()
    yield started
    started.stop()


@pytest.fixture
def own_peer(nursery: Nursery) -> Iterator[Peer]:
    """One that the test may harm."""
    started = nursery.start()
    yield started
    started.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if measured.LINES:
        terminalreporter.section("measured")
        for line in measured.LINES:
            terminalreporter.write_line(line)


MakeTransport = Callable[..., RdmaTransport]


@pytest.fixture
def make_transport(nursery: Nursery) -> Iterator[MakeTransport]:
    assert nursery
    yield from _make_transports()


@pytest.fixture(scope="module")
def make_module_transport(nursery: Nursery) -> Iterator[MakeTransport]:
    assert nursery
    yield from _make_transports()


def _make_transports() -> Iterator[MakeTransport]:
    made: list[RdmaTransport] = []

    def make(retries: Retries = PATIENT, **options: Any) -> RdmaTransport:
        options.setdefault("device_names", NAMES)
        transport = RdmaTransport(new_epoch(), "127.0.0.1", retries=retries, **options)
        made.append(transport)
        return transport

    yield make
    for transport in made:
        transport.close()
