"""An engine that is told to use RDMA where there is none: another transport, or a refusal."""

import functools
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from kit.sysfs import virtual_machine

from daemons.core.errors import ConfigError
from daemons.core.ids import Epoch
from daemons.protocol.segment import DataAddress
from daemons.transfer import Read, ReadBatch, TransferEngine, Write, contiguous, transport_table
from daemons.transfer import engine as engine_module
from daemons.transfer.memory import host_id
from daemons.transfer.topology import discover
from daemons.transfer.transports.base import describe
from daemons.transfer.transports.rdma import RdmaUnavailable, transport


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_devices(*_: object) -> list[object]:
        raise RdmaUnavailable("this host has no RDMA device")

    monkeypatch.setattr(transport, "open_devices", open_devices)


def test_tcp_is_used_instead_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    engine = TransferEngine(transports=("rdma", "tcp"))
    try:
        assert engine.address.rdma == ""
        assert engine.address.tcp
        region = engine.register(bytearray(100))
        engine.deregister(region)
    finally:
        engine.close()
    assert "this host has no RDMA device" in caplog.text


def test_devices_that_the_topology_file_ignores_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def open_devices(_: object, ignored: object) -> list[object]:
        asked.append(ignored)
        raise RdmaUnavailable("all are ignored")

    monkeypatch.setattr(transport, "open_devices", open_devices)
    tree = virtual_machine(tmp_path / "sys")
    tree.rdma("rxe0", None)
    path = tmp_path / "topology.toml"
    path.write_text('ignore = ["rxe0"]')
    monkeypatch.setattr(engine_module, "discover", functools.partial(discover, tree.root))
    TransferEngine(transports=("rdma", "tcp"), topology=path).close()
    assert asked == [["rxe0"]]


class FakeRdma:
    endpoint = "127.0.0.1:1"
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_an_engine_that_cannot_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, descriptors = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    opened: list[FakeRdma] = []

    def open_rdma(*_: object, **__: object) -> FakeRdma:
        opened.append(FakeRdma())
        return opened[-1]

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(transport_table, "open_rdma", open_rdma)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="cannot listen"):
            TransferEngine(transports=("rdma", "shm", "tcp"), tcp_port=port, unix_dir=tmp_path)
    monkeypatch.setattr(engine_module, "DataServer", no_thread)
    with pytest.raises(RuntimeError):
        TransferEngine(transports=("rdma", "shm", "tcp"), unix_dir=tmp_path)
    assert [rdma.is_closed for rdma in opened] == [True, True]
    assert threading.active_count() == threads
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert not list(tmp_path.iterdir())


class SometimesRdma(FakeRdma):
    """Reaches everyone or nobody, and counts what it is asked."""

    def __init__(self) -> None:
        self.is_up = False
        self.num_batches = 0

    def reaches(self, _: DataAddress) -> bool:
        return self.is_up

    def read(self, _: ReadBatch) -> None:
        self.num_batches += 1

    write = read


@pytest.mark.parametrize(
    ("transports", "num_batches"), [(("rdma", "tcp"), 2), (("tcp", "rdma"), 0)]
)
def test_small_transfers_take_the_preferred_transport_again_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch, transports: tuple[str, ...], num_batches: int
) -> None:
    rdma = SometimesRdma()
    owner = TransferEngine(transports=("tcp",))
    monkeypatch.setattr(transport_table, "open_rdma", lambda *_, **__: rdma)
    engine = TransferEngine(transports=transports)
    try:
        region = owner.register(bytearray(100), "read-write")
        local = np.zeros(100, np.uint8)
        reads, writes = [Read.into(contiguous(0, 100), local)], [Write.at(0, local)]
        engine.read(region, reads)  # by tcp, over a connection that is kept
        rdma.is_up = True
        engine.read(region, reads)
        engine.write(region, writes)
        assert rdma.num_batches == num_batches
    finally:
        engine.close()
        owner.close()


def test_a_peer_that_only_speaks_rdma_has_a_name() -> None:
    address = DataAddress(host_id=host_id(), unix_path="", tcp="", epoch=Epoch(7), rdma="h:1")
    assert describe(address).startswith("h:1/")


def test_config_that_leaves_only_rdma_is_refused() -> None:
    with pytest.raises(ConfigError, match="no RDMA device"):
        TransferEngine(transports=("rdma",))
