"""Measuring paths between real engines on this host, and asking a node to do it."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemons.client.probe import ask_probe
from daemons.core.errors import Exhausted, TransferError, Unavailable
from daemons.core.ids import Incarnation, NodeId, new_epoch
from daemons.protocol.node import HelloReply
from daemons.protocol.probe import DataProbe, DataProbeReply, PathMeasure
from daemons.rpc import Call, Loop, Server, SyncClient
from daemons.service import data_probe
from daemons.service.data_probe import DataProbes
from daemons.transfer import TransferEngine
from daemons.transfer.probe import PROBE_BYTES, measure, probe_region

FAST_S = 0.05


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[TransferEngine]:
    engine = TransferEngine(epoch=new_epoch(), unix_dir=tmp_path / "s")
    yield engine
    engine.close()


def test_probe_region_is_made_once_and_leaves_no_descriptor(engine: TransferEngine) -> None:
    region = probe_region(engine)
    num_open = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # names only
    assert probe_region(engine) == region
    assert region.size_bytes == PROBE_BYTES
    assert len(os.listdir("/proc/self/fd")) == num_open  # noqa: PTH208


@pytest.mark.parametrize("schemes", [("shm", "tcp"), ("tcp",)])
def test_first_offered_scheme_is_measured(engine: TransferEngine, schemes: tuple[str, ...]) -> None:
    measured = measure(probe_region(engine), schemes, FAST_S)
    assert measured.transport == schemes[0]
    assert 0 < measured.latency_s < 1
    assert measured.bytes_per_s > 1e6
    assert measured.passed_over == []
    assert (measured.nic, measured.link_bytes_per_s) == ("", None), "loopback is no link"


def test_broken_shm_falls_back_to_tcp_and_says_why(engine: TransferEngine) -> None:
    region = probe_region(engine)
    address = msgspec.structs.replace(region.address, unix_path="/nonexistent.sock")
    measured = measure(msgspec.structs.replace(region, address=address), ("shm", "tcp"), FAST_S)
    assert measured.transport == "tcp"
    assert measured.passed_over[0].startswith("shm: ")


def test_dead_peer_is_unavailable_with_a_reason(tmp_path: Path) -> None:
    engine = TransferEngine(epoch=new_epoch(), unix_dir=tmp_path / "s")
    region = probe_region(engine)
    engine.close()
    with pytest.raises(Unavailable, match="tcp: "):
        measure(region, ("shm", "tcp"), FAST_S)
    nowhere = msgspec.structs.replace(region.address, unix_path="", tcp="")
    with pytest.raises(Unavailable, match="none of the transports"):
        measure(msgspec.structs.replace(region, address=nowhere), ("shm", "tcp"), FAST_S)


@pytest.fixture
def node(engine: TransferEngine) -> Iterator[str]:
    """A control port that answers nothing but probes."""
    loop = Loop()
    probes = DataProbes(loop, engine, ("shm", "tcp"))

    def handle(call: Call) -> None:
        assert isinstance(call.message, DataProbe)
        probes.answer(call, call.message)

    def hello() -> HelloReply:
        return HelloReply(node=NodeId("n"), role="cachenode", incarnation=Incarnation(1))

    server = Server(loop, "tcp://127.0.0.1:*", hello, handle)
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield server.endpoint
    loop.stop()
    thread.join()
    server.close()
    loop.close()


def test_node_tells_its_region_and_measures_another(node: str, tmp_path: Path) -> None:
    reply = ask_probe(node)
    assert reply.region is not None
    assert reply.measured is None
    other = TransferEngine(epoch=new_epoch(), unix_dir=tmp_path / "o")
    try:
        measured = ask_probe(node, probe_region(other)).measured
    finally:
        other.close()
    assert measured is not None
    assert measured.transport == "shm"


@pytest.mark.parametrize("scheme", ["shm", "tcp"])
def test_with_a_secret_nodes_measure_by_it_and_others_by_the_grant(
    tmp_path: Path, scheme: str
) -> None:
    settings: dict[str, Any] = {"unix_dir": tmp_path / "o", "secret": b"cluster"}
    engine, other = TransferEngine(**settings), TransferEngine(**settings)
    loop = Loop()
    try:
        reply = DataProbes(loop, engine, ["tcp"])._reply(None)
        region = probe_region(engine)
        with pytest.raises(Unavailable, match="capability"):
            measure(region, (scheme,), FAST_S)
        assert measure(region, (scheme,), FAST_S, grant=reply.grant).transport == scheme
        assert measure(region, (scheme,), FAST_S, open_engine=other.sibling).transport == scheme
    finally:
        engine.close()
        other.close()
        loop.close()


def test_node_measures_one_path_at_a_time(
    node: str, engine: TransferEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = probe_region(engine)
    begun, may_end = threading.Event(), threading.Event()

    def slowly(*arguments: Any, **settings: Any) -> PathMeasure:
        begun.set()
        assert may_end.wait(20)
        return measure(*arguments, FAST_S, **settings)

    monkeypatch.setattr(data_probe, "measure", slowly)
    answers: list[DataProbeReply] = []
    first = threading.Thread(target=lambda: answers.append(ask_probe(node, region, 20)))
    first.start()
    try:
        assert begun.wait(10)
        with SyncClient(node) as second, pytest.raises(Exhausted):
            second.request(DataProbe(target=region))
    finally:
        may_end.set()
        first.join(timeout=20)
    assert [answer.measured is not None for answer in answers] == [True]
    assert ask_probe(node, region, 20).measured is not None


def test_node_reports_a_path_that_does_not_work(node: str, tmp_path: Path) -> None:
    other = TransferEngine(epoch=new_epoch(), unix_dir=tmp_path / "o")
    region = probe_region(other)
    stale = msgspec.structs.replace(
        region.address, epoch=new_epoch(), unix_path="", host_id="elsewhere"
    )
    try:
        with pytest.raises((Unavailable, TransferError)):
            ask_probe(node, msgspec.structs.replace(region, address=stale))
    finally:
        other.close()
    assert ask_probe(node).region is not None
