"""Events end to end: the past from the ring, holes filled, a new master noticed; `mcctl events` over a real master."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from daemons.client.cluster import ClusterClient
from daemons.client.event_feed import EventFeed, Item, Resync, SeenEvent
from daemons.config.mc_master import MasterConfig, MembershipSection, NodeSection
from daemons.core.ids import BlockHash, Epoch, HostId, Incarnation, NodeId
from daemons.mc_master.app import MasterApp
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.event import BlockMoved, BlockRemoved, BlockStored
from daemons.protocol.node import Join, Leave
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report
from daemons.protocol.segment import DataAddress, RegionRef, SegmentDescription
from daemons.rpc import SyncClient
from mcctl.main import main

pytestmark = pytest.mark.timeout(60)
POLL_S = 0.05
PATIENT = MembershipSection(suspect_beats=500, dead_beats=1000)
"""These nodes say nothing but that they come and go."""


class Master:
    """In a thread of this process; nodes come and go by message."""

    def __init__(self, state_dir: Path, *, kept: int, like: "Master | None" = None) -> None:
        section = NodeSection(
            listen=like.app.endpoint if like else "tcp://127.0.0.1:*",
            events=like.events if like else "tcp://127.0.0.1:*",
            metrics="",
            state_dir=str(state_dir),
            event_history=kept,
        )
        self.app = MasterApp(MasterConfig(node=section, membership=PATIENT))
        self.events = self.app._publisher.endpoint
        self._thread = threading.Thread(target=self.app.run)
        self._thread.start()
        self._client = SyncClient(self.app.endpoint)

    def come(self, *nodes: str) -> None:
        for node in nodes:
            description = msgspec.structs.replace(
                self.app.state.description, node=NodeId(node), role="gateway", epoch=Epoch(1)
            )
            self._client.request(Join(node=description, incarnation_seen=Incarnation(0)))

    def go(self, *nodes: str) -> None:
        for node in nodes:
            self._client.request(Leave(node=NodeId(node), epoch=Epoch(1)))

    def reporter(self, node: str) -> Callable[..., None]:
        """A cache node joins; what is returned sends its reports."""
        address = DataAddress(host_id=HostId("h"), unix_path="", tcp="", epoch=Epoch(1))
        region = RegionRef(address=address, region_id=1, size_bytes=1 << 20)
        segment = SegmentDescription(region=region, path="", capacity_bytes=1 << 20)
        description = msgspec.structs.replace(
            self.app.state.description,
            node=NodeId(node),
            role="cachenode",
            epoch=Epoch(1),
            segments=[segment],
        )
        self._client.request(Join(node=description, incarnation_seen=Incarnation(0)))
        numbers = itertools.count(1)

        def report(**fields: object) -> None:
            lists: dict[str, object] = {"freed": [], **fields}
            lists["sealed"] = SealedBlocks.pack(fields.get("sealed", []))  # type: ignore[arg-type]
            message = Report(
                node=NodeId(node),
                epoch=1,
                sequence=next(numbers),
                used_bytes=0,
                capacity_bytes=1 << 20,
                **lists,  # type: ignore[arg-type]  # as the test names them
            )
            self._client.request(message)

        return report

    def close(self) -> None:
        self._client.close()
        self.app.loop.stop()
        self._thread.join(5)
        self.app.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    running = Master(tmp_path, kept=8)
    yield running
    running.close()


def block(number: int) -> SealedBlock:
    meta = BlockMeta(
        hash=BlockHash(bytes([number]) * 16),
        parent=BlockHash(bytes(16)),
        namespace=bytes(16),
        depth=0,
        num_tokens=16,
        model="m",
    )
    return SealedBlock(
        meta=meta,
        offset=number * 100,
        length=100,
        trailer_bytes=40,
        version=1,
        seal_checksum=1,
        num_layers=1,
    )


class LossyRelay:
    """Passes on what the master publishes, but for what it is told to lose."""

    def __init__(self, master: Master) -> None:
        self._context = zmq.Context()
        self._from = self._context.socket(zmq.SUB)
        self._from.setsockopt(zmq.SUBSCRIBE, b"")
        self._from.connect(master.events)
        self._to = self._context.socket(zmq.XPUB)
        self.endpoint = f"tcp://127.0.0.1:{self._to.bind_to_random_port('tcp://127.0.0.1')}"
        deadline_s = time.monotonic() + 5
        while not master.app._publisher._topics and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def wait_for_reader(self) -> None:
        assert self._to.poll(5000), "nobody subscribed"
        self._to.recv()

    def pass_on(self, num_events: int, *, lose: tuple[int, ...] = ()) -> None:
        for index in range(num_events):
            assert self._from.poll(5000), f"event {index} did not come"
            frames = self._from.recv_multipart()
            if index not in lose:
                self._to.send_multipart(frames)

    def close(self) -> None:
        self._from.close(0)
        self._to.close(0)
        self._context.term()


def take(items: Iterator[Item | None], num_items: int, within_s: float = 10.0) -> list[Item]:
    found: list[Item] = []
    deadline_s = time.monotonic() + within_s
    while len(found) < num_items:
        assert time.monotonic() < deadline_s, f"only {found}"
        item = next(items)
        if item is not None:
            found.append(item)
    return found


def brief(items: list[Item]) -> list[tuple[int, str, str]]:
    assert all(isinstance(item, SeenEvent) for item in items), items
    return [
        (item.sequence, type(item.event).__name__, item.event.node)  # type: ignore[union-attr]
        for item in items
        if isinstance(item, SeenEvent)
    ]


def test_past_then_present_each_once_and_in_order(master: Master) -> None:
    master.come("a", "b")
    with ClusterClient(master.app.endpoint) as client:
        feed = EventFeed(client, master.events)
        assert brief(list(feed.latest(1))) == [(2, "NodeJoined", "b")]
        items = feed.follow(POLL_S)
        master.go("a")
        master.come("c")
        assert brief(take(items, 2)) == [(3, "NodeLeft", "a"), (4, "NodeJoined", "c")]
        master.go("b", "c")
        assert brief(take(items, 2)) == [(5, "NodeLeft", "b"), (6, "NodeLeft", "c")]
        feed.close()


@pytest.mark.parametrize("topics", [(), ("nodejoined",), ("nodejoined", "blocksstored")])
def test_what_a_slow_reader_missed_is_filled_in(master: Master, topics: tuple[str, ...]) -> None:
    relay = LossyRelay(master)
    with ClusterClient(master.app.endpoint) as client:
        feed = EventFeed(client, relay.endpoint, topics)
        relay.wait_for_reader()
        assert list(feed.since(1)) == []
        items = feed.follow(POLL_S)
        master.come("a", "b", "c", "d")
        relay.pass_on(4, lose=(1, 2))
        assert brief(take(items, 4)) == [
            (number, "NodeJoined", node) for number, node in enumerate("abcd", 1)
        ]
        feed.close()
    relay.close()


def test_last_event_that_was_lost_is_found_by_asking(master: Master) -> None:
    relay = LossyRelay(master)
    with ClusterClient(master.app.endpoint) as client:
        feed = EventFeed(client, relay.endpoint)
        relay.wait_for_reader()
        items = feed.follow(POLL_S)
        next(items)
        master.come("a")
        relay.pass_on(1, lose=(0,))
        assert brief(take(items, 1)) == [(1, "NodeJoined", "a")]
        feed.close()
    relay.close()


def test_what_is_no_longer_kept_is_reported_as_a_resync(master: Master) -> None:
    master.come(*[f"n{number}" for number in range(12)])
    with ClusterClient(master.app.endpoint) as client:
        feed = EventFeed(client, master.events)
        resync, *kept = list(feed.since(2))
        assert isinstance(resync, Resync)
        assert resync.num_missed == 3
        assert [sequence for sequence, _, _ in brief(kept)] == list(range(5, 13))
        (future,) = list(feed.since(99))
        assert isinstance(future, Resync)
        feed.close()


def test_another_master_is_a_resync_and_its_events_follow(tmp_path: Path) -> None:
    first = Master(tmp_path, kept=8)
    first.come("a", "b", "c")
    with ClusterClient(first.app.endpoint) as client:
        feed = EventFeed(client, first.events)
        assert len(list(feed.since(1))) == 3
        items = feed.follow(POLL_S)
        next(items)
        first.close()
        second = Master(tmp_path, kept=8, like=first)
        second.come("d")
        resync, joined = take(items, 2)
        assert isinstance(resync, Resync)
        assert resync.incarnation == second.app.state.incarnation > first.app.state.incarnation
        assert brief([joined]) == [(1, "NodeJoined", "d")]
        feed.close()
    second.close()


def test_block_that_goes_down_a_tier_moved_and_one_sealed_again_is_removed_first(
    master: Master,
) -> None:
    report = master.reporter("c0")
    one, two = block(1), block(2)
    report(sealed=[one, two])
    report(sealed=[one], tier="ssd")
    report(freed=[one.meta.hash, two.meta.hash], sealed=[two])
    with ClusterClient(master.app.endpoint) as client:
        feed = EventFeed(client, master.events)
        found = [item.event for item in feed.since(5) if isinstance(item, SeenEvent)]
        feed.close()
    moved, removed, stored = found
    assert isinstance(moved, BlockMoved)
    assert (moved.hash, moved.from_tier, moved.tier) == (one.meta.hash, "dram", "ssd")
    assert (moved.from_node, moved.node) == ("c0", "c0")
    assert isinstance(removed, BlockRemoved)
    assert (removed.hash, removed.why) == (two.meta.hash, "evicted")
    assert isinstance(stored, BlockStored)
    assert stored.meta.hash == two.meta.hash


def test_command_shows_the_past_ends_and_is_json_for_scripts(
    master: Master, capsys: pytest.CaptureFixture[str]
) -> None:
    master.come(*[f"n{number}" for number in range(10)])
    master.go("n9")
    at = ["--endpoint", master.app.endpoint, "--events", master.events]
    assert main(["events", *at, "--last", "2", "-o", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["event"], line["sequence"], line["node"]) for line in lines] == [
        ("NodeJoined", 10, "n9"),
        ("NodeLeft", 11, "n9"),
    ]
    assert main(["events", *at, "--since", "1", "--topic", "left", "-o", "plain"]) == 0
    shown = capsys.readouterr()
    number = f"{master.app.state.incarnation}:11"
    assert shown.out.split("\t")[1:] == [number, "node left      n9 (gateway): left\n"]
    assert "3 events missed" in shown.err
    assert main(["events", *at, "--last", "1", "--follow", "--for", "0.3", "-o", "json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    old = f"{master.app.state.incarnation + 1}:3"
    assert main(["events", *at, "--since", old, "-o", "json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["event"], first["num_missed"]) == ("Resync", None)
