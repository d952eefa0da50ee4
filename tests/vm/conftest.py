"""Two processes and two pairs of Soft-RoCE devices. `tests/vm/run .venv/bin/python -m pytest tests/vm` has them.

With REQUIRE=rdma in the environment a test that cannot run fails instead of being skipped.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from vm import peer as peer_process

from daemons.core.ids import Epoch, HostId, new_epoch
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.transfer.transports.rdma import RdmaTransport, Retries, why_unavailable

HERE = Path(__file__).parent
NAMES = ("rxe0", "rxe1")
PEER_NAMES = ("rxe0p", "rxe1p")
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


@dataclass
class Peer:
    """The other process; `ask` has it do something."""

    process: subprocess.Popen[str]
    address: DataAddress

    def ask(self, *words: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def region(self, region_id: int, size_bytes: int = peer_process.SIZE_BYTES) -> RegionRef:
        return RegionRef(address=self.address, region_id=region_id, size_bytes=size_bytes)

    @property
    def source(self) -> RegionRef:
        return self.region(1)

    @property
    def writable(self) -> RegionRef:
        return self.region(2)

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the peer died"
        return json.loads(line)

    @classmethod
    def start(cls, devices: tuple[str, ...] = PEER_NAMES, secret: str = "") -> "Peer":
        retries = {"timeout": PATIENT.timeout, "count": PATIENT.count}
        arguments = {"devices": devices, "retries": retries, "secret": secret}
        root = str(HERE.parent.parent)
        process = subprocess.Popen(
            [sys.executable, str(HERE / "peer.py"), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": root},
        )
        started = cls(
            process, DataAddress(host_id=HostId(""), unix_path="", tcp="", epoch=Epoch(1))
        )
        hello = started._answer()
        started.address = DataAddress(
            host_id=HostId("other"),
            unix_path="",
            tcp="",
            epoch=Epoch(hello["epoch"]),
            rdma=hello["rdma"],
        )
        return started

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(scope="session")
def _can_run() -> None:
    why = _why_not()
    if why:
        pytest.fail(f"REQUIRE=rdma, but {why}")


@pytest.fixture(scope="module")
def peer(_can_run: None) -> Iterator[Peer]:
    started = Peer.start()
    yield started
    started.stop()


@pytest.fixture
def own_peer(_can_run: None) -> Iterator[Peer]:
    """One that the test may harm."""
    started = Peer.start()
    yield started
    started.stop()


MakeTransport = Callable[..., RdmaTransport]


@pytest.fixture
def make_transport(_can_run: None) -> Iterator[MakeTransport]:
    yield from _make_transports()


@pytest.fixture(scope="module")
def make_module_transport(_can_run: None) -> Iterator[MakeTransport]:
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
