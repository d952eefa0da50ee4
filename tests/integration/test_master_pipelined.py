"""Look-ups that wait together are answered together, and still in their turn among all that the master is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from daemons.client.synthetic_nodes import block_hash, sealed_block
from daemons.config.mc_master import MasterConfig, NodeSection
from daemons.core.ids import BlockHash, HostId, Incarnation, NodeId, new_epoch
from daemons.mc_master.app import MasterApp
from daemons.mc_master.blocks.lookups import MAX_TOGETHER
from daemons.protocol.base import Message
from daemons.protocol.lookup import Match, MatchReply
from daemons.protocol.messages import Reply, decode_incoming, encode
from daemons.protocol.node import Join, JoinReply, NodeDescription
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report, ReportReply
from daemons.protocol.segment import DataAddress, RegionRef, SegmentDescription
from daemons.rpc.framing import Header, Kind, unpack_header

pytestmark = pytest.mark.timeout(60)
NODE, HOST = NodeId("n"), HostId("h")
HASHES = [block_hash(number) for number in range(8)]


class Wire:
    """A master that is turned only to answer, so that all that was sent before waits together."""

    def __init__(self, tmp_path: Path) -> None:
        node = NodeSection(
            listen="tcp://127.0.0.1:*",
            events="tcp://127.0.0.1:*",
            metrics="",
            state_dir=str(tmp_path),
        )
        self.app = MasterApp(MasterConfig(node=node))
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.connect(self.app.endpoint)

    def ask(self, *messages: Message) -> list[Reply]:
        """The answers, by the order of the requests."""
        for number, message in enumerate(messages):
            header = Header(Kind.REQUEST, number, 60_000)
            self.socket.send_multipart([header.pack(), encode(message)])
        found: dict[int, Reply] = {}

        def has_all() -> bool:
            while self.socket.poll(0):
                frames = self.socket.recv_multipart()
                answered = unpack_header(frames[0])
                if answered.kind is Kind.REPLY:
                    found[answered.request_id] = decode_incoming(frames[1])  # type: ignore[assignment]  # a reply by its kind
            return len(found) == len(messages)

        assert self.app.loop.run_until(has_all, 20)
        assert self.app.loop.num_errors == 0
        self.app.state.directory.check_invariants()
        return [found[number] for number in range(len(messages))]


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    made = Wire(tmp_path)
    yield made
    made.context.destroy(linger=0)
    made.app.close()


def joined(wire: Wire) -> int:
    """Its epoch."""
    epoch = new_epoch()
    data = DataAddress(host_id=HOST, unix_path="", tcp="127.0.0.1:9", epoch=epoch)
    region = RegionRef(address=data, region_id=1, size_bytes=1 << 30)
    described = NodeDescription(
        node=NODE,
        role="cachenode",
        host="h",
        host_id=HOST,
        epoch=epoch,
        control="tcp://127.0.0.1:9",
        pid=1,
        software="test",
        data=data,
        segments=[SegmentDescription(region=region, path="", capacity_bytes=1 << 30)],
    )
    [reply] = wire.ask(Join(node=described, incarnation_seen=Incarnation(0)))
    assert isinstance(reply, JoinReply)
    return epoch


def report(epoch: int, sequence: int, *, sealed: range, freed: list[BlockHash]) -> Report:
    return Report(
        node=NODE,
        epoch=epoch,
        sequence=sequence,
        sealed=SealedBlocks.pack(map(sealed_block, sealed)),
        freed=freed,
        used_bytes=0,
        capacity_bytes=1 << 30,
    )


def test_each_look_up_sees_what_was_reported_before_it_and_nothing_after(wire: Wire) -> None:
    epoch = joined(wire)
    look = Match(hashes=HASHES)
    near = Match(hashes=HASHES[:2], near=HOST)
    first = report(epoch, 1, sealed=range(4), freed=[])
    last = report(epoch, 2, sealed=range(4, 8), freed=HASHES[1:4])
    answers = wire.ask(look, look, first, look, near, look, last, *[look] * (MAX_TOGETHER + 3))
    lengths = [len(each.locations) for each in answers if isinstance(each, MatchReply)]
    assert lengths == [0, 0, 4, 2, 4, *[1] * (MAX_TOGETHER + 3)]
    assert isinstance(answers[2], ReportReply)
    for each in answers:
        if isinstance(each, MatchReply):
            found = each.locations.unpack()
            assert [at.hash for at in found] == HASHES[: len(found)]
            assert {at.node for at in found} <= {NODE}
    counts = wire.app.state.directory.lookups
    assert counts.num_lookups == len(lengths)
    assert counts.num_hit_blocks == sum(lengths)


def test_what_is_looked_up_together_is_leased(wire: Wire) -> None:
    epoch = joined(wire)
    wire.ask(report(epoch, 1, sealed=range(8), freed=[]))
    wire.ask(*[Match(hashes=HASHES[:3])] * 3, *[Match(hashes=HASHES[3:5], lease_ms=0)] * 2)
    directory, now_s = wire.app.state.directory, wire.app.state.now_s()
    rows = directory.blocks.find_all(HASHES).tolist()
    leased = [directory.leases.is_leased(row, now_s=now_s) for row in rows]
    assert leased == [True] * 3 + [False] * 5
