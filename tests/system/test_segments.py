"""Segments of a running cache node: mounted, unmounted, killed in the middle of either. What was stored stays."""

import contextlib
import io
import json
import random
import time
from collections.abc import Iterator, Sequence
from urllib.request import urlopen

import pytest
from kit.daemon import wait_for
from kit.object_pool import ObjectPool

from daemons.client.cluster import ClusterClient
from daemons.client.segments import NodeSegments
from daemons.core.errors import Exhausted, McError, NotFound, Rejected, Unavailable
from daemons.core.ids import BlockHash
from daemons.core.units import MIB
from daemons.protocol.block import BlockFilter
from daemons.protocol.segment import SegmentState
from mcctl import Store
from mcctl.main import main

pytestmark = pytest.mark.timeout(120)

VALUE = MIB // 4


class Grown:
    """A pool of one node, and a model of what was put."""

    def __init__(self) -> None:
        self.pool = ObjectPool(1, started=0, segment="16MiB")
        self.values: dict[str, bytes] = {}
        self._num_put = 0
        try:
            self.start()
        except BaseException:
            self.pool.close()
            raise

    def start(self) -> None:
        self.pool.start_node(0, f"node.state_dir={self.pool.directory / 'node-state'}")
        wait_for(lambda: self.pool.num_alive() == 1 and self.states(), 60.0, what="the node")

    def restart(self) -> None:
        self.pool.kill("node-0")
        self.start()

    def reset(self) -> None:
        """Nothing is stored, and no segment added."""
        for state in self.states()[1:]:
            self.segments.remove(state.number)
            self.wait_status(state.number, None)
        with ClusterClient(self.pool.endpoint) as client:
            client.clear_blocks(BlockFilter())
        self.values.clear()

    @property
    def segments(self) -> NodeSegments:
        return NodeSegments(self.pool.nodes()[0].node.control, 5.0)

    def states(self) -> list[SegmentState]:
        """Empty while the node does not answer."""
        try:
            return self.segments.states()
        except McError:
            return []

    def find(self, number: int) -> SegmentState | None:
        return next((state for state in self.states() if state.number == number), None)

    def wait_status(self, number: int, status: str | None) -> None:
        """None: it is gone."""

        def is_so() -> bool:
            found = {state.number: state.status for state in self.states()}
            return 0 in found and found.get(number) == status

        wait_for(is_so, 60.0, what=f"segment {number} {status}")

    def add(self, size_bytes: int, directory: str = "") -> int:
        number = self.segments.add(size_bytes, directory).number
        self.wait_status(number, "mounted")
        return number

    def put(self, count: int) -> None:
        with Store(self.pool.endpoint) as store:
            for number in range(self._num_put, self._num_put + count):
                value = random.Random(number).randbytes(VALUE)
                store.put(f"v{number}", value)
                self.values[f"v{number}"] = value
        self._num_put += count

    def num_read(self) -> int:
        """How many are there; each has its bytes."""
        found: dict[str, bytes | None] = {}
        with Store(self.pool.endpoint) as store:
            for name in self.values:
                with contextlib.suppress(Unavailable):  # until the node has announced what it has
                    found[name] = store.get(name)
        assert all(value in (None, self.values[name]) for name, value in found.items())
        return sum(value is not None for value in found.values())

    def wait_read(self, at_least: int) -> None:
        """Many look-ups and much reading, so not again and again without a pause."""

        def is_so() -> bool:
            time.sleep(0.1)
            return self.num_read() >= at_least

        wait_for(is_so, 60.0, what=f"{at_least} values")

    def pin(self, hashes: Sequence[BlockHash]) -> None:
        with ClusterClient(self.pool.endpoint) as client:
            client.pin_blocks(hashes, "hard", 600.0)

    def unpin(self, hashes: Sequence[BlockHash]) -> None:
        with ClusterClient(self.pool.endpoint) as client:
            client.pin_blocks(hashes, "none")

    def blocks(self) -> list[BlockHash]:
        """The newest first."""
        with ClusterClient(self.pool.endpoint) as client:
            found = sorted(client.blocks(BlockFilter()), key=lambda each: each.age_s)
        return [each.meta.hash for each in found]

    def mcctl(self, *words: str) -> str:
        """What it prints."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main([*words, "--endpoint", self.pool.endpoint]) == 0
        return out.getvalue()

    def known_segments(self) -> list[int]:
        """To the master."""
        return [segment.number for segment in self.pool.nodes()[0].node.segments]

    def metrics(self) -> str:
        with urlopen(f"http://{self.pool.nodes()[0].node.metrics}/metrics") as reply:
            text: str = reply.read().decode()
        return text

    def files(self) -> list[str]:
        return sorted(path.name for path in self.pool.directory.glob("shm-0/*/*"))


@pytest.fixture(scope="module")
def node() -> Iterator[Grown]:
    made = Grown()
    yield made
    made.pool.close()


@pytest.fixture
def grown(node: Grown) -> Iterator[Grown]:
    """One node for all tests here: to start one takes longest."""
    yield node
    node.reset()


def test_an_added_segment_takes_its_share_is_there_again_after_a_kill_and_is_removed(
    grown: Grown,
) -> None:
    text = grown.mcctl("segment", "add", "--node", "node-0", "--bytes", "16MiB")
    assert "segment 1 of node-0 is mounted: 16.0 MiB at " in text
    grown.put(40)
    listed = json.loads(grown.mcctl("segment", "list", "--output", "json"))["segments"]
    assert [each["segment"]["number"] for each in listed] == [0, 1]
    shares = [each["segment"]["used_bytes"] for each in listed]
    assert min(shares) > 0.3 * max(shares), "new blocks are spread, some MiB at a time"
    wait_for(lambda: grown.known_segments() == [0, 1], what="the master's word")
    wait_for(lambda: grown.pool.nodes()[0].used_bytes > 10 * MIB)
    wait_for(lambda: grown.pool.nodes()[0].capacity_bytes > 25 * MIB)
    wait_for(lambda: 'segment_bytes{segment="1",status="mounted",what="used"}' in grown.metrics())
    grown.restart()
    grown.wait_read(40)
    assert [state.status for state in grown.states()] == ["mounted", "mounted"]
    with Store(grown.pool.endpoint) as reader:
        assert reader.get("v0") == grown.values["v0"]
        text = grown.mcctl("segment", "remove", "1", "--node", "node-0", "--yes")
        assert "gone" in text
        assert all(reader.get(name) == value for name, value in grown.values.items())
    assert grown.files() == ["node-0.index", "node-0.segment"]
    wait_for(lambda: grown.known_segments() == [0], what="the master's word")
    assert grown.add(8 * MIB) == 2, "a number is never used twice"


def test_what_finds_no_room_elsewhere_goes_the_coldest_first_but_nothing_that_is_pinned(
    grown: Grown,
) -> None:
    number = grown.add(16 * MIB)
    grown.put(90)
    blocks = grown.blocks()
    grown.pin(blocks)

    def refusal() -> str:
        try:
            grown.segments.remove(number)
        except Exhausted as error:
            return error.message
        return ""

    wait_for(lambda: "are pinned, and the node's other segments have no room" in refusal())
    assert [state.status for state in grown.states()] == ["mounted", "mounted"]
    grown.unpin(blocks[20:])
    wait_for(lambda: not refusal())
    grown.wait_status(number, None)
    assert set(grown.blocks()).issuperset(blocks[:20])
    assert grown.num_read() >= 40
    grown.unpin(blocks[:20])


def test_what_cannot_be_is_refused_with_the_reason(grown: Grown) -> None:
    segments = grown.segments
    with pytest.raises(Rejected, match="segment 0 is that of the node's configuration"):
        segments.remove(0)
    with pytest.raises(NotFound, match="segment 77 of node node-0 is not lent"):
        segments.remove(77)
    with pytest.raises(NotFound, match="/nowhere is no directory"):
        segments.add(16 * MIB, "/nowhere")
    with pytest.raises(Rejected, match="a segment of 4"):
        segments.add(4096)
    with pytest.raises(Exhausted, match="free, the segment needs 8"):
        segments.add(8 << 40)


def test_killed_while_it_adds_or_removes_it_goes_on_with_that_and_loses_nothing(
    grown: Grown,
) -> None:
    rng = random.Random(1)
    first = grown.add(16 * MIB)
    grown.put(40)
    second = grown.segments.add(64 * MIB).number
    time.sleep(rng.uniform(0, 0.2))
    grown.restart()
    grown.wait_status(second, "mounted")
    grown.segments.remove(first)
    time.sleep(rng.uniform(0, 0.2))
    grown.restart()
    grown.wait_status(first, None)
    grown.wait_read(40)
    grown.restart()
    assert [state.number for state in grown.states()] == [0, second]
    grown.wait_read(40)
    names = [f"node-0.{second}", "node-0"]
    assert grown.files() == [f"{name}.{kind}" for name in names for kind in ("index", "segment")]


def test_a_node_starts_without_an_added_segment_whose_directory_is_gone_and_says_so(
    grown: Grown,
) -> None:
    other = grown.pool.directory / "other"
    other.mkdir()
    number = grown.add(8 * MIB, str(other))
    grown.put(20)
    grown.pool.kill("node-0")
    for path in sorted(other.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    other.rmdir()
    other.write_text("a file")
    grown.start()
    grown.wait_status(number, "failed")
    found = grown.find(number)
    assert found is not None
    assert str(other) in found.why
    wait_for(grown.blocks, 60.0, what="the blocks of the other segment")
    assert grown.num_read() < 20, "of others some blocks are gone"
    grown.segments.remove(number)
    grown.wait_status(number, None)
