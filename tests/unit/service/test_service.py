"""Readiness, logging, metrics, and the tie to a master."""

import logging
import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from daemons.config.mc_master import MasterConfig
from daemons.core.errors import ConfigError, Conflict, Exhausted, McError, Unavailable
from daemons.core.ids import Epoch, HostId, Incarnation, NodeId
from daemons.protocol.base import Ok
from daemons.protocol.node import Beat, HelloReply, Join, JoinReply, Leave, NodeDescription
from daemons.rpc import Call, Loop, Server
from daemons.rpc import client as client_module
from daemons.service.daemon import App, run_daemon
from daemons.service.logs import set_up_logging
from daemons.service.master_link import MasterLink
from daemons.service.metrics import MetricsServer
from daemons.service.notify import notify, watchdog_interval_s

pytestmark = pytest.mark.timeout(30)


def test_notify_sends_one_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        notify("READY=1", "STATUS=fine")
        assert listener.recv(100) == b"READY=1\nSTATUS=fine"
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")


def test_watchdog_is_half_of_what_systemd_asks_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert watchdog_interval_s() is None
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    assert watchdog_interval_s() == 5
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
    assert watchdog_interval_s() is None


def test_journal_lines_carry_their_priority(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = logging.root.handlers[:], logging.root.level
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    try:
        set_up_logging("n", "info")
        logging.getLogger("x").warning("first\nsecond")
        logging.getLogger("x").debug("never")
        assert capsys.readouterr().err == "<4>first\n<4>second\n"
        monkeypatch.delenv("JOURNAL_STREAM")
        set_up_logging("n", "info")
        logging.getLogger("x").info("hello")
        assert capsys.readouterr().err.endswith(" INFO n hello\n")
    finally:
        logging.root.handlers[:] = kept[0]
        logging.root.setLevel(kept[1])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("this port is taken"), 78),
        (Exhausted("no memory now"), 6),
        (Unavailable("the device is away"), 7),
        (McError("odd"), 1),
    ],
)
def test_start_that_fails_ends_with_the_status_of_its_family(
    error: McError,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def build(_: MasterConfig) -> App:
        raise error

    kept = logging.root.handlers[:], logging.root.level
    monkeypatch.setattr("sys.argv", ["mc-master"])
    try:
        assert run_daemon("mc-master", MasterConfig, build) == status
    finally:
        logging.root.handlers[:] = kept[0]
        logging.root.setLevel(kept[1])
    assert capsys.readouterr().err == f"mc-master: {error.message}\n"


def test_metrics_are_served_and_a_bad_address_is_said() -> None:
    registry = CollectorRegistry()
    Counter("things", "Things", registry=registry).inc(3)
    server = MetricsServer("127.0.0.1:0", registry)
    with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=5) as answer:
        assert b"things_total 3.0" in answer.read()
    with pytest.raises(ConfigError, match=r"node\.metrics"):
        MetricsServer(server.address, registry)
    server.close()
    server.close()
    for wrong in ("nonsense", ":80", "127.0.0.1:99999"):
        with pytest.raises(ConfigError, match="host:port"):
            MetricsServer(wrong, registry)
    assert MetricsServer("", registry).address == ""


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_metrics_are_served_on_ipv6() -> None:
    try:
        server = MetricsServer("[::1]:0", CollectorRegistry())
    except ConfigError as error:
        pytest.skip(error.message)
    try:
        assert server.address.startswith("[::1]:")
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=5) as answer:
            assert answer.status == 200
    finally:
        server.close()


def test_metrics_address_is_taken_before_there_is_anything_to_show() -> None:
    server = MetricsServer("127.0.0.1:0")
    try:
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=5) as answer:
            assert answer.read() == b""
        registry = CollectorRegistry()
        Counter("things", "Things", registry=registry).inc(3)
        server.show(registry)
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=5) as answer:
            assert b"things_total 3.0" in answer.read()
    finally:
        server.close()


class FakeMaster:
    """A real server that answers as the test says."""

    def __init__(self, loop: Loop) -> None:
        self.incarnation = 5
        self.beats_ok = True
        self.joins: list[Join] = []
        self.num_beats = 0
        self.num_leaves = 0
        self.server = Server(loop, "tcp://127.0.0.1:*", self.hello, self.handle)

    def hello(self) -> HelloReply:
        return HelloReply(
            node=NodeId("m"), role="master", incarnation=Incarnation(self.incarnation)
        )

    def handle(self, call: Call) -> None:
        match call.message:
            case Join():
                self.joins.append(call.message)
                call.reply(
                    JoinReply(incarnation=Incarnation(self.incarnation), beat_interval_ms=20)
                )
            case Beat() if not self.beats_ok:
                raise Unavailable("join again")
            case Beat():
                self.num_beats += 1
                call.reply(Ok())
            case Leave():
                self.num_leaves += 1
                call.reply(Ok())


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def describe() -> NodeDescription:
    return NodeDescription(
        node=NodeId("n"),
        role="cachenode",
        host="h",
        host_id=HostId("h"),
        epoch=Epoch(1),
        control="",
        pid=1,
        software="",
    )


def test_a_taken_id_is_said_once(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    attempts: list[Call] = []

    def refuse(call: Call) -> None:
        attempts.append(call)
        raise Conflict("node id 'n' belongs to a newer process")

    server = Server(loop, "tcp://127.0.0.1:*", FakeMaster(loop).hello, refuse)
    link = MasterLink(loop, server.endpoint, describe)
    assert loop.run_until(lambda: len(attempts) >= 3, 20)
    said = [record for record in caplog.records if "newer process" in record.getMessage()]
    assert [record.levelname for record in said if record.levelno > logging.DEBUG] == ["ERROR"]
    assert not link.is_joined
    link.close()
    server.close()


def test_link_joins_beats_joins_again_and_leaves(loop: Loop) -> None:
    master = FakeMaster(loop)
    joined: list[int] = []
    link = MasterLink(loop, master.server.endpoint, describe, on_joined=joined.append)
    assert loop.run_until(lambda: master.num_beats >= 3, 20)
    assert (joined, link.incarnation) == ([5], 5)
    master.beats_ok = False
    assert loop.run_until(lambda: len(master.joins) >= 2, 20)
    master.beats_ok = True
    assert master.joins[1].incarnation_seen == 5
    assert loop.run_until(lambda: link.is_joined, 20)
    left: list[bool] = []
    link.leave(lambda: left.append(True))
    assert loop.run_until(lambda: bool(left), 20)
    assert master.num_leaves == 1
    link.close()
    master.server.close()


def test_link_whose_channel_is_full_goes_on_trying(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = FakeMaster(loop)
    link = MasterLink(loop, master.server.endpoint, describe)
    assert loop.run_until(lambda: link.is_joined, 20)
    monkeypatch.setattr(client_module, "MAX_PENDING", 0)
    assert loop.run_until(lambda: not link.is_joined, 20)
    monkeypatch.undo()
    assert loop.run_until(lambda: link.is_joined, 20)
    assert loop.num_errors == 0
    link.close()
    master.server.close()


def test_link_does_not_obey_an_older_master(loop: Loop) -> None:
    master = FakeMaster(loop)
    link = MasterLink(loop, master.server.endpoint, describe)
    assert loop.run_until(lambda: link.is_joined, 20)
    master.incarnation, master.beats_ok = 4, False
    assert loop.run_until(lambda: len(master.joins) >= 2, 20)
    assert loop.run_until(lambda: len(master.joins) >= 3, 20)
    assert not link.is_joined
    assert link.incarnation == 5
    link.close()
    master.server.close()


def test_link_outlives_its_master_and_leaves_without_it(loop: Loop) -> None:
    master = FakeMaster(loop)
    endpoint = master.server.endpoint
    link = MasterLink(loop, endpoint, describe)
    assert loop.run_until(lambda: link.is_joined, 20)
    master.server.close()
    assert loop.run_until(lambda: not link.is_joined, 20)
    left: list[bool] = []
    link.leave(lambda: left.append(True))
    assert left == [True]
    link.close()
