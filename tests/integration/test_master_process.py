"""A real mc-master process with a scripted node: membership, blocks, plans, crash, stop and continue."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from kit.daemon import free_port

from daemons.client.cluster import ClusterClient
from daemons.client.objects.format import object_meta
from daemons.core.errors import McError, NotFound, Rejected, Unavailable
from daemons.core.ids import BlockHash, Epoch, HostId, Incarnation, NodeId, RequestId
from daemons.protocol.base import Ok
from daemons.protocol.block import BadReplica, BlockFilter, BlockMeta, FreeBlocks, SealedBlock, Tier
from daemons.protocol.cache import (
    CacheStat,
    CacheStatReply,
    ClearBlocks,
    ClearBlocksReply,
    ListBlocks,
    ListBlocksReply,
)
from daemons.protocol.event import BlocksRemoved, BlocksStored, ReadEvents, ReadEventsReply
from daemons.protocol.lookup import Locate, LocateReply, Match, MatchReply
from daemons.protocol.messages import Notice, Reply, decode_event
from daemons.protocol.node import (
    Hello,
    HelloReply,
    InstanceLoad,
    Join,
    Leave,
    ListModels,
    ListModelsReply,
    ListNodes,
    ListNodesReply,
    ModelDescription,
    NodeDescription,
    Role,
)
from daemons.protocol.objects import (
    NAME_STATES,
    ExistNames,
    ExistNamesReply,
    NameState,
    NameToReserve,
    ReserveNames,
    ReserveNamesReply,
)
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.prefix_hash import block_hashes, root_hash
from daemons.protocol.report import Report, ReportReply
from daemons.protocol.request import Plan, RequestDone, Schedule, Timing
from daemons.protocol.request_list import ListRequests, ListRequestsReply
from daemons.protocol.segment import DataAddress, RegionRef, SegmentDescription
from daemons.protocol.tiers import StageAhead
from daemons.rpc import Loop, Subscriber, SyncClient
from daemons.service.device_reports import DeviceReports, Instance
from daemons.service.master_link import MasterLink
from daemons.store.directory.names import COUNTER_BITS
from mcctl.commands.top import look_again
from mcctl.main import main
from mcctl.views.top import Frame

pytestmark = pytest.mark.timeout(60)
NAMESPACE = b"n" * 16
BLOCK_BYTES = 1000
CAPACITY_BYTES = 100_000


@dataclass
class MasterProcess:
    directory: Path
    port: int = field(default_factory=free_port)
    events_port: int = field(default_factory=free_port)
    metrics_port: int = field(default_factory=free_port)
    extra: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def config(self) -> Path:
        return self.directory / "mc-master.toml"

    def write_config(self) -> None:
        self.config.write_text(
            f"""
[node]
listen = "{self.endpoint}"
events = "tcp://127.0.0.1:{self.events_port}"
metrics = "127.0.0.1:{self.metrics_port}"
state_dir = "{self.directory / "state"}"
{self.extra}
"""
        )

    def start(self) -> "MasterProcess":
        self.write_config()
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "daemons.mc_master", "--config", str(self.config)],
                stderr=log,
                cwd=Path(__file__).parents[2],
            )
        deadline_s = time.monotonic() + 40
        while time.monotonic() < deadline_s:
            assert self.process.poll() is None, self.log()
            try:
                with SyncClient(self.endpoint, 1.0) as client:
                    client.request(Hello())
            except McError:
                time.sleep(0.05)
            else:
                return self
        self.process.kill()
        self.process.wait(10)
        raise AssertionError(f"the master did not start: {self.log()}")

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(10)

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as page:
            return str(page.read().decode())

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterProcess]:
    running = MasterProcess(tmp_path)
    running.start()
    yield running
    if running.process is not None and running.process.poll() is None:
        running.process.send_signal(signal.SIGCONT)
        running.process.kill()
        running.process.wait(10)


@pytest.fixture
def client(master: MasterProcess) -> Iterator[SyncClient]:
    with SyncClient(master.endpoint, 5.0) as connected:
        yield connected


@pytest.fixture
def loop() -> Iterator[Loop]:
    running = Loop()
    yield running
    running.close()


def address(host: str = "host") -> DataAddress:
    return DataAddress(host_id=HostId(host), unix_path="/run/x", tcp="127.0.0.1:1", epoch=Epoch(1))


def model(name: str = "tiny", namespace: bytes = NAMESPACE) -> ModelDescription:
    return ModelDescription(
        name=name,
        namespace=namespace,
        dtype="float32",
        block_tokens=16,
        chunk_tokens=64,
        max_context_tokens=4096,
        num_layers=2,
        num_kv_heads=1,
        head_dim=8,
        vocab_size=100,
        eos_token_ids=[0],
        is_reuse_safe=True,
    )


def describe(
    node: str, role: Role, *, epoch: int = 1, served: ModelDescription | None = None
) -> NodeDescription:
    region = RegionRef(address=address(), region_id=1, size_bytes=CAPACITY_BYTES)
    segment = SegmentDescription(region=region, path="/dev/shm/x", capacity_bytes=CAPACITY_BYTES)
    return NodeDescription(
        node=NodeId(node),
        role=role,
        host="localhost",
        host_id=HostId("host"),
        epoch=Epoch(epoch),
        control=f"tcp://127.0.0.1:1/{node}",
        pid=1,
        software="test",
        data=address(),
        segments=[segment] if role == "cachenode" else [],
        model=served,
        capacity_tokens=8192 if role == "decode" else 0,
    )


def chain(num_blocks: int, seed: int = 0) -> list[BlockHash]:
    tokens = [seed * 1000 + index for index in range(num_blocks * 16)]
    return block_hashes(NAMESPACE, tokens, 16)


def sealed(hashes: list[BlockHash]) -> list[SealedBlock]:
    parents = [root_hash(NAMESPACE), *hashes]
    return [
        SealedBlock(
            meta=BlockMeta(
                hash=block_hash,
                parent=parents[depth],
                namespace=NAMESPACE,
                depth=depth,
                num_tokens=16,
                model="tiny",
            ),
            offset=depth * BLOCK_BYTES,
            length=BLOCK_BYTES,
            trailer_bytes=40,
            version=1,
            seal_checksum=7,
            num_layers=2,
        )
        for depth, block_hash in enumerate(hashes)
    ]


class ScriptedNode:
    """A node with the real MasterLink; a cache node keeps a list of blocks, announces it, and frees when told."""

    def __init__(self, loop: Loop, master: MasterProcess, description: NodeDescription) -> None:
        self.loop = loop
        self.description = description
        self.blocks: dict[BlockHash, SealedBlock] = {}
        self.sequence = 0
        self.num_joins = 0
        self.notices: list[Notice] = []
        self.replies: list[Reply | McError] = []
        self.obeys = True
        self.is_opening = False
        self.load = InstanceLoad()
        self.link = MasterLink(
            loop,
            master.endpoint,
            lambda: self.description,
            load=lambda: self.load if description.model else None,
            on_joined=self.on_joined,
            on_notice=self.on_notice,
        )

    def on_joined(self, _incarnation: int) -> None:
        self.num_joins += 1
        self.sequence = 0
        if self.description.segments:
            self.report(list(self.blocks.values()), [])

    def on_notice(self, notice: Notice) -> None:
        self.notices.append(notice)
        if isinstance(notice, FreeBlocks) and self.obeys:
            self.free(notice.hashes)

    def seal(self, hashes: list[BlockHash]) -> None:
        new = sealed(hashes)
        self.blocks.update({block.meta.hash: block for block in new})
        self.report(new, [])

    def free(self, hashes: list[BlockHash]) -> None:
        for block_hash in hashes:
            self.blocks.pop(block_hash, None)
        self.report([], hashes)

    def report(
        self,
        new: list[SealedBlock],
        freed: list[BlockHash],
        bad: list[BlockHash] | None = None,
        tier: Tier = "dram",
    ) -> None:
        message = Report(
            node=self.description.node,
            epoch=self.description.epoch,
            sequence=self.sequence,
            sealed=SealedBlocks.pack(new),
            freed=freed,
            bad=bad or [],
            tier=tier,
            used_bytes=BLOCK_BYTES * len(self.blocks),
            capacity_bytes=CAPACITY_BYTES,
            is_opening=self.is_opening,
        )
        self.sequence += 1
        self.link.channel.request(message, timeout_s=2.0, on_reply=self.on_report_reply)

    def on_report_reply(self, reply: Reply | McError) -> None:
        self.replies.append(reply)
        if isinstance(reply, ReportReply) and self.obeys:
            if reply.announce:
                self.sequence = 0
                self.report(list(self.blocks.values()), [])
            elif reply.victims:
                self.free(reply.victims)

    def close(self) -> None:
        self.link.close()


class ScriptedInstance(ScriptedNode):
    """Holds in its arena what the test says, and tells the master as instances do."""

    def __init__(self, loop: Loop, master: MasterProcess, description: NodeDescription) -> None:
        self.held: dict[BlockHash, SealedBlock] = {}
        self.reports = DeviceReports(loop, Instance(description.node, description.epoch))
        super().__init__(loop, master, description)
        self.reports.attach(self.link, self)

    def on_joined(self, _incarnation: int) -> None:
        self.num_joins += 1
        self.reports.announce()

    def on_notice(self, notice: Notice) -> None:
        self.reports.obey(notice)

    def hold(self, hashes: list[BlockHash]) -> None:
        self.held |= {block.meta.hash: block for block in sealed(hashes)}
        self.reports.sealed(hashes)

    def hashes(self) -> list[BlockHash]:
        return list(self.held)

    def describe(self, hashes: Iterable[BlockHash]) -> list[SealedBlock]:
        return [self.held[key] for key in hashes if key in self.held]

    def usage(self) -> tuple[int, int]:
        return BLOCK_BYTES * len(self.held), 50_000

    def forget(self, hashes: Sequence[BlockHash]) -> None:
        for key in hashes:
            self.held.pop(key, None)

    def forget_ahead(self, wanted: BlockFilter, age_s: float) -> None:
        """It makes none."""


@pytest.fixture
def nodes(loop: Loop, master: MasterProcess) -> Iterator[Callable[[NodeDescription], ScriptedNode]]:
    made: list[ScriptedNode] = []

    def make(description: NodeDescription) -> ScriptedNode:
        kind = ScriptedInstance if description.role == "prefill" else ScriptedNode
        made.append(kind(loop, master, description))
        assert loop.run_until(lambda: made[-1].link.is_joined, 20), master.log()
        return made[-1]

    yield make
    for node in made:
        node.close()


Make = Callable[[NodeDescription], ScriptedNode]


def trio(nodes: Make) -> tuple[ScriptedNode, ScriptedNode, ScriptedNode]:
    return (
        nodes(describe("c0", "cachenode")),
        nodes(describe("p0", "prefill", served=model())),
        nodes(describe("d0", "decode", served=model())),
    )


def schedule(hashes: list[BlockHash], *, request_id: str = "r1", **more: object) -> Schedule:
    asked = Schedule(
        request_id=RequestId(request_id),
        model="tiny",
        num_prompt_tokens=len(hashes) * 16 + 1,
        max_tokens=8,
        hashes=hashes,
    )
    return msgspec.structs.replace(asked, **more)


def ask(client: SyncClient, loop: Loop, message: object, kind: type[Reply]) -> Reply:
    """Ask while the scripted nodes' loop keeps turning."""
    got: list[Reply | McError] = []
    client.loop.run_once(0.0)
    client.channel.request(message, timeout_s=5.0, on_reply=got.append)  # type: ignore[arg-type]
    deadline_s = time.monotonic() + 6
    while not got and time.monotonic() < deadline_s:
        client.loop.run_once(0.005)
        loop.run_once(0.005)
    if isinstance(got[0], McError):
        raise got[0]
    assert isinstance(got[0], kind)
    return got[0]


def wait_blocks(client: SyncClient, loop: Loop, count: int, timeout_s: float = 20) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        stat = ask(client, loop, CacheStat(), CacheStatReply)
        if stat.num_blocks == count:  # type: ignore[union-attr]
            return
        assert time.monotonic() < deadline_s, stat


def states(client: SyncClient, loop: Loop) -> dict[str, str]:
    reply = ask(client, loop, ListNodes(), ListNodesReply)
    assert isinstance(reply, ListNodesReply)
    return {listed.node.node: listed.state for listed in reply.nodes}


def test_plan_names_the_pair_the_match_and_where_to_put(
    client: SyncClient, loop: Loop, nodes: Make
) -> None:
    cache, _, _ = trio(nodes)
    hashes = chain(8)
    cache.seal(hashes[:6])
    wait_blocks(client, loop, 6)
    plan = ask(client, loop, schedule(hashes), Plan)
    assert isinstance(plan, Plan)
    assert (plan.prefill.node, plan.decode.node) == ("p0", "d0")
    assert [location.hash for location in plan.matched.unpack()] == hashes[:6]
    assert plan.matched.unpack()[3].offset == 3 * BLOCK_BYTES
    assert plan.put_target is not None
    assert plan.put_target.node == "c0"
    assert plan.incarnation == 1
    assert {candidate.node for candidate in plan.candidates} == {"p0", "d0"}
    stat = ask(client, loop, CacheStat(), CacheStatReply)
    assert isinstance(stat, CacheStatReply)
    assert (stat.num_leased, stat.num_hit_blocks, stat.num_lookup_blocks) == (6, 6, 8)
    assert stat.blocks_by_model == {"tiny": 6}


def test_request_log_holds_prediction_and_outcome(
    client: SyncClient, loop: Loop, nodes: Make
) -> None:
    trio(nodes)
    ask(client, loop, schedule(chain(2)), Plan)
    client.request(
        RequestDone(
            request_id=RequestId("r1"),
            node=NodeId("d0"),
            ok=True,
            num_generated_tokens=8,
            timing=Timing(first_token_s=0.25, decode_s=0.35),
        )
    )
    reply = ask(client, loop, ListRequests(), ListRequestsReply)
    assert isinstance(reply, ListRequestsReply)
    (request,) = reply.requests
    assert (request.state, request.actual_ttft_s, request.num_generated_tokens) == ("done", 0.25, 8)
    assert (request.predicted_ttft_s or 0) > 0
    assert (request.predicted_tbt_s or 0) > 0
    assert request.actual_tbt_s == pytest.approx(0.05)


def test_refusals_say_what_to_do(client: SyncClient, loop: Loop, nodes: Make) -> None:
    with pytest.raises(Unavailable) as nobody:
        ask(client, loop, schedule(chain(1)), Plan)
    assert nobody.value.retry_after_ms is not None
    nodes(describe("p0", "prefill", served=model()))
    with pytest.raises(Unavailable, match="no decode node"):
        ask(client, loop, schedule(chain(1)), Plan)
    nodes(describe("d0", "decode", served=model()))
    with pytest.raises(Rejected, match="lower max_tokens"):
        ask(client, loop, schedule(chain(1), num_prompt_tokens=9000), Plan)
    with pytest.raises(Unavailable, match="no prefill node"):
        ask(client, loop, schedule(chain(1), exclude=["p0"]), Plan)
    time.sleep(2)  # before, a master says that nodes are still joining
    with pytest.raises(NotFound, match="known: tiny"):
        ask(client, loop, schedule(chain(1), model="huge"), Plan)


def test_who_would_miss_the_objective_is_refused_and_costs_nothing(
    nodes: Make, master: MasterProcess, client: SyncClient, loop: Loop
) -> None:
    """With an objective of half a second, and prompts that take 0.4 s each: one runs, and the next would be late."""
    cache, prefill, _ = trio(nodes)
    master.extra = "[conductor]\nttft_slo_s = 0.5\n"
    master.write_config()
    master.send(signal.SIGHUP)
    hashes = chain(60)
    cache.seal(hashes)
    wait_blocks(client, loop, 60)
    long = schedule(chain(400, seed=7), request_id="long")
    assert ask(client, loop, long, Plan).predicted_ttft_s > 2 * 0.5  # type: ignore[union-attr]
    for number in range(3):
        with pytest.raises(Rejected, match=r"objective is 0\.5 s") as late:
            ask(client, loop, schedule(hashes, request_id=f"late{number}"), Plan)
        assert (late.value.retry_after_ms or 0) >= 1000
    stat = ask(client, loop, CacheStat(), CacheStatReply)
    assert isinstance(stat, CacheStatReply)
    assert (stat.num_leased, stat.num_lookup_blocks) == (0, 400)
    listed = ask(client, loop, ListRequests(), ListRequestsReply)
    assert isinstance(listed, ListRequestsReply)
    assert [(request.request_id, request.state) for request in listed.requests] == [
        ("late2", "rejected"),
        ("late1", "rejected"),
        ("late0", "rejected"),
        ("long", "running"),
    ]
    latest = listed.requests[0]
    assert "objective is 0.5 s" in latest.why
    assert (latest.predicted_ttft_s or 0) > 0.5
    assert {each.node for each in latest.candidates} == {"p0", "d0"}
    assert 'mc_master_overload_rejections_total{limit="ttft"} 3.0' in master.metrics()
    prefill.load = InstanceLoad(is_draining=True, num_running=1)
    refused_by = _refusal(client, loop, schedule(hashes, request_id="drained"))
    assert "no prefill node" in refused_by


def _refusal(client: SyncClient, loop: Loop, asked: Schedule) -> str:
    """Why it is refused for good, once the node's next beat has come."""
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        try:
            ask(client, loop, asked, Plan)
        except Unavailable as error:
            return error.message
        except Rejected:
            pass
        ask(client, loop, RequestDone(request_id=asked.request_id, node=NodeId("d0"), ok=True), Ok)
        time.sleep(0.05)
    raise AssertionError("the node that drains is still planned on")


def test_clear_is_answered_when_nodes_reported_it(
    client: SyncClient, loop: Loop, nodes: Make
) -> None:
    cache = nodes(describe("c0", "cachenode"))
    cache.seal(chain(5))
    wait_blocks(client, loop, 5)
    reply = ask(client, loop, ClearBlocks(filter=BlockFilter(model="other")), ClearBlocksReply)
    assert reply == ClearBlocksReply(num_cleared=0)
    reply = ask(client, loop, ClearBlocks(filter=BlockFilter(model="tiny")), ClearBlocksReply)
    assert reply == ClearBlocksReply(num_cleared=5, cleared_bytes=5 * BLOCK_BYTES)
    assert not cache.blocks
    stat = ask(client, loop, CacheStat(), CacheStatReply)
    assert isinstance(stat, CacheStatReply)
    assert (stat.num_blocks, stat.num_cleared, stat.num_evicted) == (0, 5, 0)


def test_clear_says_what_is_left_when_a_node_does_not_answer(
    client: SyncClient, loop: Loop, nodes: Make
) -> None:
    cache = nodes(describe("c0", "cachenode"))
    cache.seal(chain(3))
    wait_blocks(client, loop, 3)
    cache.obeys = False
    reply = client.request(ClearBlocks(filter=BlockFilter()), timeout_s=4.0)
    assert reply == ClearBlocksReply(num_cleared=0, num_left=3)


@pytest.mark.parametrize("end", ["killed", "left", "new life", "announced anew"])
def test_clear_does_not_wait_for_a_node_that_is_gone(
    client: SyncClient, loop: Loop, nodes: Make, end: str
) -> None:
    gone, stays = nodes(describe("c0", "cachenode")), nodes(describe("c1", "cachenode"))
    gone.seal(chain(3))
    stays.seal(chain(2, seed=1))
    wait_blocks(client, loop, 5)
    gone.obeys = False
    if end == "killed":
        gone.close()  # its connection closes with it
        loop.run_until(lambda: False, 0.2)
    replies: list[ClearBlocksReply] = []

    def clear() -> None:
        with SyncClient(client.channel.endpoint, 30.0) as own:
            reply = own.request(ClearBlocks(filter=BlockFilter()))
            assert isinstance(reply, ClearBlocksReply)
            replies.append(reply)

    asking = threading.Thread(target=clear)
    began_s = time.monotonic()
    asking.start()
    assert end == "killed" or loop.run_until(
        lambda: any(isinstance(notice, FreeBlocks) for notice in gone.notices), 20
    )
    if end == "left":
        gone.link.leave(lambda: None)
    elif end == "new life":
        gone.close()
        nodes(describe("c0", "cachenode", epoch=2))
    elif end == "announced anew":
        gone.sequence = 1
        gone.report(list(gone.blocks.values()), [])
    assert loop.run_until(lambda: bool(replies), 20)
    asking.join(20)
    assert time.monotonic() - began_s < 20
    assert replies == [ClearBlocksReply(num_cleared=2, num_left=3, cleared_bytes=2 * BLOCK_BYTES)]


def test_bad_block_leaves_the_directory_and_is_called_bad(
    master: MasterProcess, client: SyncClient, loop: Loop, nodes: Make
) -> None:
    events = Subscriber(f"tcp://127.0.0.1:{master.events_port}", ("blocksremoved",))
    cache = nodes(describe("c0", "cachenode"))
    hashes = chain(2)
    cache.seal(hashes)
    wait_blocks(client, loop, 2)
    cache.report([], [], bad=[hashes[1]])
    wait_blocks(client, loop, 1)
    ((_, removed, _),) = events.events(1.0)
    events.close()
    assert isinstance(removed, BlocksRemoved)
    assert (removed.hashes, removed.node, removed.why) == ([hashes[1]], "c0", "bad")
    stat = ask(client, loop, CacheStat(), CacheStatReply)
    assert isinstance(stat, CacheStatReply)
    assert stat.num_evicted == 0


def test_a_request_names_the_blocks_that_it_had_staged_and_replicated(
    client: SyncClient, loop: Loop, nodes: Make, master: MasterProcess
) -> None:
    cache, _, _ = trio(nodes)
    low, hot = chain(10, seed=1), chain(3, seed=2)
    cache.report(sealed(low), [], tier="ssd")
    cache.seal(hot)
    wait_blocks(client, loop, 13)
    ask(client, loop, schedule(low, request_id="low"), Plan)
    for number in range(20):  # as often as pool.hot_uses says
        ask(client, loop, schedule(hot, request_id=f"hot-{number}"), Plan)
    listed = ask(client, loop, ListRequests(), ListRequestsReply)
    assert isinstance(listed, ListRequestsReply)
    ahead = {each.request_id: each.ahead for each in listed.requests}
    [staged] = ahead[RequestId("low")]
    assert (staged.what, staged.node, staged.tier) == ("staged", "c0", "ssd")
    assert (staged.num_blocks, staged.hashes) == (10, low[:8])
    assert loop.run_until(lambda: any(isinstance(n, StageAhead) for n in cache.notices), 20)
    [replicated] = ahead[RequestId("hot-19")]
    assert (replicated.what, replicated.node) == ("replicated", None)
    assert replicated.hashes == hot
    assert not any(ahead[RequestId(f"hot-{number}")] for number in range(19))
    assert 'mc_master_blocks_staged_ahead_total{tier="ssd"} 10.0' in master.metrics()


def test_full_node_is_told_victims_and_leased_blocks_stay(
    client: SyncClient, loop: Loop, nodes: Make
) -> None:
    cache, _, _ = trio(nodes)
    leased = chain(10, seed=1)
    cache.seal(leased)
    wait_blocks(client, loop, 10)
    ask(client, loop, schedule(leased), Plan)
    for seed in range(2, 11):
        cache.seal(chain(10, seed))
    assert len(cache.blocks) == 100
    assert loop.run_until(lambda: len(cache.blocks) <= 90, 20)
    wait_blocks(client, loop, 90)
    assert set(leased) <= set(cache.blocks)
    assert len(set(chain(10, 2)) & set(cache.blocks)) < 10


def device_places(client: SyncClient, loop: Loop, **fields: object) -> dict[BlockHash, list[str]]:
    """Of each listed block, who holds it in an arena."""
    wanted = BlockFilter(**fields)  # type: ignore[arg-type]
    reply = ask(client, loop, ListBlocks(filter=wanted), ListBlocksReply)
    assert isinstance(reply, ListBlocksReply)
    return {
        listed.meta.hash: [
            node for node, tier in zip(listed.nodes, listed.tiers, strict=True) if tier == "device"
        ]
        for listed in reply.blocks
    }


def wait_device(client: SyncClient, loop: Loop, node: str, count: int) -> None:
    deadline_s = time.monotonic() + 20
    while len(device_places(client, loop, node=NodeId(node))) != count:
        assert time.monotonic() < deadline_s, f"{node} is not said to hold {count} blocks"


def test_what_instances_hold_in_their_arenas_is_known_shown_planned_with_and_cleared(
    client: SyncClient, loop: Loop, nodes: Make
) -> None:
    cache = nodes(describe("c0", "cachenode"))
    holder, _ = (nodes(describe(name, "prefill", served=model())) for name in ("p1", "p0"))
    nodes(describe("d0", "decode", served=model()))
    hashes = chain(8)
    assert isinstance(holder, ScriptedInstance)
    cache.seal(hashes[:2])
    wait_blocks(client, loop, 2)
    holder.hold(hashes[:6])
    wait_device(client, loop, "p1", 6)
    assert device_places(client, loop) == {key: ["p1"] for key in hashes[:6]}
    assert len(device_places(client, loop, node=NodeId("c0"))) == 2
    found = ask(client, loop, Locate(hashes=hashes, lease_ms=0, wants_devices=True), LocateReply)
    assert isinstance(found, LocateReply)
    assert found.devices == {index: ["p1"] for index in range(6)}
    assert found.counts == [1, 1, 0, 0, 0, 0, 0, 0]
    stat = ask(client, loop, CacheStat(), CacheStatReply)
    assert isinstance(stat, CacheStatReply)
    assert (stat.num_blocks, stat.num_replicas) == (2, 2)
    assert stat.tiers["device"].num_blocks == 6

    plan = ask(client, loop, schedule(hashes), Plan)
    assert isinstance(plan, Plan)
    assert plan.prefill.node == "p1"
    assert len(plan.matched) == 2
    by_node = {each.node: each for each in plan.candidates}
    assert (by_node[NodeId("p1")].matched_tokens, by_node[NodeId("p1")].device_tokens) == (96, 96)
    assert by_node[NodeId("p0")].device_tokens == 0

    reply = ask(client, loop, ClearBlocks(filter=BlockFilter()), ClearBlocksReply)
    assert reply == ClearBlocksReply(num_cleared=6, cleared_bytes=8 * BLOCK_BYTES)
    assert not holder.held
    assert device_places(client, loop) == {}
    past = ask(client, loop, ReadEvents(topics=["blocksremoved"]), ReadEventsReply)
    assert isinstance(past, ReadEventsReply)
    removed = [decode_event(event.payload) for event in past.events]
    assert ("device", "cleared", hashes[:6]) in [
        (event.tier, event.why, event.hashes)
        for event in removed
        if isinstance(event, BlocksRemoved)
    ]


def test_what_an_instance_holds_is_told_to_a_new_master_and_gone_with_its_process(
    client: SyncClient, loop: Loop, nodes: Make, master: MasterProcess
) -> None:
    holder = nodes(describe("p0", "prefill", served=model()))
    assert isinstance(holder, ScriptedInstance)
    holder.hold(chain(3))
    wait_device(client, loop, "p0", 3)
    assert master.stop(signal.SIGKILL) == -signal.SIGKILL
    assert loop.run_until(lambda: not holder.link.is_joined, 20)
    master.start()
    assert loop.run_until(lambda: holder.num_joins >= 2, 20)
    wait_device(client, loop, "p0", 3)
    holder.close()
    nodes(describe("p0", "prefill", epoch=2, served=model()))
    wait_device(client, loop, "p0", 0)
    refused = Report(
        node=NodeId("p0"),
        epoch=2,
        sequence=2,
        sealed=SealedBlocks.pack(sealed(chain(1))),
        freed=[],
        used_bytes=0,
        capacity_bytes=1,
    )
    with pytest.raises(NotFound, match="without a segment"):
        client.request(refused)
    reply = client.request(msgspec.structs.replace(refused, tier="device", sequence=9))
    assert reply == ReportReply(announce=True)


def test_gap_in_reports_asks_for_an_announcement(
    client: SyncClient, loop: Loop, nodes: Make
) -> None:
    cache = nodes(describe("c0", "cachenode"))
    cache.seal(chain(4))
    wait_blocks(client, loop, 4)
    cache.sequence += 3
    cache.seal(chain(2, seed=5))
    assert loop.run_until(
        lambda: any(isinstance(r, ReportReply) and r.announce for r in cache.replies), 3
    )
    wait_blocks(client, loop, 6)


def test_joining_again_keeps_blocks_readable_until_the_announcement(
    client: SyncClient, loop: Loop, nodes: Make
) -> None:
    cache = nodes(describe("c0", "cachenode"))
    cache.seal(chain(4))
    wait_blocks(client, loop, 4)
    client.request(Join(node=cache.description, incarnation_seen=Incarnation(1)))
    stat = client.request(CacheStat())
    assert isinstance(stat, CacheStatReply)
    assert (stat.num_blocks, stat.used_bytes) == (4, 4 * BLOCK_BYTES)
    del cache.blocks[chain(4)[3]]
    cache.sequence = 1
    cache.report(list(cache.blocks.values()), [])
    wait_blocks(client, loop, 3)


def test_listing_pages_and_looking_leases_nothing(
    client: SyncClient, loop: Loop, nodes: Make
) -> None:
    cache = nodes(describe("c0", "cachenode"))
    hashes = chain(25)
    cache.seal(hashes)
    wait_blocks(client, loop, 25)
    listed: list[BlockHash] = []
    after = None
    while True:
        page = client.request(ListBlocks(filter=BlockFilter(), after=after, limit=10))
        assert isinstance(page, ListBlocksReply)
        listed += [block.meta.hash for block in page.blocks]
        if not page.has_more:
            break
        after = page.blocks[-1].meta.hash
    assert listed == sorted(hashes)
    looked = client.request(Locate(hashes=hashes, lease_ms=0))
    assert isinstance(looked, LocateReply)
    assert all(len(replicas) == 1 for replicas in looked.unpack())
    matched = client.request(Match(hashes=hashes, lease_ms=0))
    assert isinstance(matched, MatchReply)
    assert len(matched.locations) == 25
    stat = client.request(CacheStat())
    assert isinstance(stat, CacheStatReply)
    assert (stat.num_leased, stat.num_lookups) == (0, 0)
    prefix = hashes[7].hex()[:5]
    page = client.request(ListBlocks(filter=BlockFilter(hash_prefix=prefix)))
    assert isinstance(page, ListBlocksReply)
    assert hashes[7] in {block.meta.hash for block in page.blocks}
    with pytest.raises(Rejected, match="hex"):
        client.request(ListBlocks(filter=BlockFilter(hash_prefix="xyz")))


def test_silent_node_is_suspect_then_dead_and_joins_again(
    client: SyncClient, loop: Loop, nodes: Make
) -> None:
    cache = nodes(describe("c0", "cachenode"))
    cache.seal(chain(4))
    wait_blocks(client, loop, 4)
    seen: set[str] = set()
    deadline_s = time.monotonic() + 30
    while "dead" not in seen and time.monotonic() < deadline_s:  # its loop does not turn
        reply = client.request(ListNodes())
        assert isinstance(reply, ListNodesReply)
        seen.add(reply.nodes[0].state)
        time.sleep(0.1)
    assert seen == {"alive", "suspect", "dead"}
    stat = client.request(CacheStat())
    assert isinstance(stat, CacheStatReply)
    assert (stat.num_blocks, stat.num_replicas, stat.capacity_bytes) == (0, 0, 0)
    remove = ["node", "remove", "c0", "--endpoint", client.channel.endpoint]
    assert main(remove) == 0
    assert main(remove) == 3, "it is forgotten"
    wait_blocks(client, loop, 4)
    assert states(client, loop) == {"c0": "alive"}


def test_new_process_replaces_the_old_and_leave_removes(
    client: SyncClient, loop: Loop, nodes: Make, master: MasterProcess
) -> None:
    events = Subscriber(f"tcp://127.0.0.1:{master.events_port}")
    time.sleep(0.3)
    cache = nodes(describe("c0", "cachenode"))
    cache.seal(chain(4))
    wait_blocks(client, loop, 4)
    cache.close()
    successor = nodes(describe("c0", "cachenode", epoch=2))
    wait_blocks(client, loop, 0)
    left: list[bool] = []
    successor.link.leave(lambda: left.append(True))
    assert loop.run_until(lambda: bool(left), 20)
    assert states(client, loop) == {}
    with pytest.raises(Unavailable, match="join again"):
        client.request(
            Report(
                node=NodeId("c0"),
                epoch=1,
                sequence=9,
                sealed=SealedBlocks(),
                freed=[],
                used_bytes=0,
                capacity_bytes=1,
            )
        )
    found = [event for _, event, _ in events.events(0.5)]
    names = [type(event).__name__ for event in found]
    events.close()
    assert names.count("NodeJoined") == 2
    assert sum(len(event.sealed) for event in found if isinstance(event, BlocksStored)) == 4
    assert names.count("NodeLeft") == 2
    client.request(Leave(node=NodeId("nobody"), epoch=Epoch(1)))


def test_bad_replica_is_passed_on_to_its_node(client: SyncClient, loop: Loop, nodes: Make) -> None:
    cache = nodes(describe("c0", "cachenode"))
    bad = BadReplica(hash=chain(1)[0], node=NodeId("c0"), why="checksum")
    client.request(bad)
    assert loop.run_until(lambda: bad in cache.notices, 20)
    with pytest.raises(NotFound):
        client.request(msgspec.structs.replace(bad, node="nobody"))


def test_killed_master_comes_back_one_life_later_and_is_told_everything(
    client: SyncClient, loop: Loop, nodes: Make, master: MasterProcess
) -> None:
    cache, prefill, decode = trio(nodes)
    cache.seal(chain(7))
    wait_blocks(client, loop, 7)
    operator = ClusterClient(master.endpoint, 1.0)
    frames = look_again(operator, 0.05, None)
    assert next(frames).incarnation == 1  # type: ignore[union-attr]
    assert master.stop(signal.SIGKILL) == -signal.SIGKILL
    assert loop.run_until(lambda: not cache.link.is_joined, 20)
    assert isinstance(next(frames), Unavailable)
    master.start()
    began_s = time.monotonic()
    everyone = (cache, prefill, decode)
    assert loop.run_until(lambda: all(node.num_joins >= 2 for node in everyone), 20)
    wait_blocks(client, loop, 7, timeout_s=20)
    assert time.monotonic() - began_s < 20
    assert all(node.link.incarnation == 2 for node in everyone)
    hello = client.request(Hello())
    assert isinstance(hello, HelloReply)
    assert hello.incarnation == 2
    with operator:  # mcctl top has waited for it
        assert next(each for each in frames if isinstance(each, Frame)).incarnation == 2
    plan = ask(client, loop, schedule(chain(7)), Plan)
    assert isinstance(plan, Plan)
    assert plan.incarnation == 2
    assert len(plan.matched) == 7


def test_stopped_master_expires_nobody(
    client: SyncClient, loop: Loop, nodes: Make, master: MasterProcess
) -> None:
    cache, _, _ = trio(nodes)
    cache.seal(chain(3))
    wait_blocks(client, loop, 3)
    master.send(signal.SIGSTOP)
    until_s = time.monotonic() + 3
    while time.monotonic() < until_s:
        loop.run_once(0.05)
    master.send(signal.SIGCONT)
    seen: set[str] = set()
    until_s = time.monotonic() + 4
    while time.monotonic() < until_s:
        try:
            seen |= set(states(client, loop).values())
        except Unavailable:
            continue  # our own connection was lost with the stall
    assert seen == {"alive"}, master.log()
    wait_blocks(client, loop, 3)
    assert "gone" not in master.log()


def test_master_below_a_seen_incarnation_steps_down_and_starts_above_it(
    client: SyncClient, master: MasterProcess
) -> None:
    with pytest.raises(Unavailable):
        client.request(Join(node=describe("c0", "cachenode"), incarnation_seen=41), timeout_s=3)
    assert master.process is not None
    assert master.process.wait(20) not in (0, 78)
    assert "incarnation 41 lived" in master.log()
    master.start()
    hello = client.request(Hello())
    assert isinstance(hello, HelloReply)
    assert hello.incarnation == 42


def test_a_master_that_has_forgotten_its_life_steps_down_before_a_node_of_that_life(
    client: SyncClient, master: MasterProcess
) -> None:
    """It counts from 1 again, as the one did whom the node knows."""
    first, other = describe("c0", "cachenode"), describe("c1", "cachenode")
    client.request(Join(node=first, incarnation_seen=0))
    client.request(Join(node=first, incarnation_seen=1))
    with pytest.raises(Unavailable):
        client.request(Join(node=other, incarnation_seen=1), timeout_s=3)
    assert master.process is not None
    assert master.process.wait(20) not in (0, 78)
    master.start()
    hello = client.request(Hello())
    assert isinstance(hello, HelloReply)
    assert hello.incarnation == 2


def test_a_version_that_turns_up_behind_an_announcement_ends_no_master_and_is_not_given_out_again(
    client: SyncClient, loop: Loop, nodes: Make
) -> None:
    """It may be a client's invention."""
    cache = nodes(describe("c0", "cachenode"))
    cache.seal(chain(1))
    wait_blocks(client, loop, 1)
    version = (cache.link.incarnation << COUNTER_BITS) + 77
    cache.report([msgspec.structs.replace(sealed(chain(2))[1], version=version)], [])
    wait_blocks(client, loop, 2)
    wanted = ReserveNames(namespace=b"", names=[NameToReserve(name=b"a", value_bytes=1)])
    reserved = ask(client, loop, wanted, ReserveNamesReply)
    assert isinstance(reserved, ReserveNamesReply)
    assert reserved.names[0].version == version + 1
    # It has announced to this master: what it tells anew, and says for the first time, is of this master's life too.
    made_up = [version + 5000, version + (1 << COUNTER_BITS - 1), (1 << 64) - 1]
    pairs = zip(sealed(chain(3)), made_up, strict=True)
    cache.sequence = 0
    cache.report([msgspec.structs.replace(each, version=number) for each, number in pairs], [])
    wait_blocks(client, loop, 3)
    reserved = ask(client, loop, msgspec.structs.replace(wanted, replaces=True), ReserveNamesReply)
    assert isinstance(reserved, ReserveNamesReply)
    assert reserved.names[0].version == version + 5001


def test_a_name_is_not_absent_before_its_node_knows_what_its_object_store_has(
    client: SyncClient, loop: Loop, nodes: Make, master: MasterProcess
) -> None:
    cache = nodes(describe("c0", "cachenode"))
    named = msgspec.structs.replace(
        sealed(chain(1))[0],
        meta=object_meta(b"n", b"a", BLOCK_BYTES),
        version=(cache.link.incarnation << COUNTER_BITS) + 1,
    )
    cache.report([named], [])
    wait_blocks(client, loop, 1)
    cache.close()
    back = ScriptedNode(loop, master, describe("c0", "cachenode", epoch=9))
    back.is_opening = True

    def wait_until(wanted: NameState) -> None:
        exists = ExistNames(namespace=b"n", names=[b"a"])
        deadline_s = time.monotonic() + 20
        while True:
            reply = ask(client, loop, exists, ExistNamesReply)
            assert isinstance(reply, ExistNamesReply)
            found = NAME_STATES[reply.states[0]]
            assert found != "absent" or not back.is_opening
            if found == wanted:
                return
            assert time.monotonic() < deadline_s, found

    assert loop.run_until(lambda: bool(back.replies), 20)
    wait_until("unreachable")
    back.is_opening = False
    back.report([], [])
    wait_until("absent")
    back.close()


def test_metrics_count_nodes_blocks_plans_and_bad_messages(
    client: SyncClient, loop: Loop, nodes: Make, master: MasterProcess
) -> None:
    cache, _, _ = trio(nodes)
    cache.seal(chain(3))
    wait_blocks(client, loop, 3)
    ask(client, loop, schedule(chain(3)), Plan)
    with pytest.raises(Rejected):
        ask(client, loop, schedule(chain(3), num_prompt_tokens=9000), Plan)
    until_s = time.monotonic() + 1.2
    while time.monotonic() < until_s:
        loop.run_once(0.05)
    url = f"http://127.0.0.1:{master.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    for line in (
        'mc_master_nodes{role="cachenode",state="alive"} 1.0',
        "mc_master_blocks 3.0",
        f"mc_master_pool_used_bytes {3.0 * BLOCK_BYTES}",
        "mc_master_hit_blocks_total 3.0",
        'mc_master_plans_total{policy="time"} 1.0',
        'mc_master_rejections_total{why="rejected"} 1.0',
        "mc_master_malformed_messages 0.0",
        "mc_master_incarnation 1.0",
    ):
        assert line in text


def test_models_are_those_of_live_instances(client: SyncClient, loop: Loop, nodes: Make) -> None:
    trio(nodes)
    reply = ask(client, loop, ListModels(), ListModelsReply)
    assert reply == ListModelsReply(models=[model()])


def test_reload_takes_the_policy_and_refuses_nonsense(
    client: SyncClient, loop: Loop, nodes: Make, master: MasterProcess
) -> None:
    trio(nodes)
    master.extra = '[conductor]\npolicy = "random"\n'
    master.write_config()
    master.send(signal.SIGHUP)
    deadline_s = time.monotonic() + 20
    while "config reloaded" not in master.log():
        assert time.monotonic() < deadline_s
        loop.run_once(0.05)
    plan = ask(client, loop, schedule(chain(1)), Plan)
    assert isinstance(plan, Plan)
    assert plan.policy == "random"
    master.extra = "[pool]\nlow_watermark = 0.99\n"
    master.write_config()
    master.send(signal.SIGHUP)
    while "reload refused" not in master.log():
        assert time.monotonic() < deadline_s + 20
        loop.run_once(0.05)
    plan = ask(client, loop, schedule(chain(1), request_id="r2"), Plan)
    assert isinstance(plan, Plan)
    assert plan.policy == "random"


def test_sigterm_ends_with_status_0_and_a_taken_port_with_78(
    master: MasterProcess, tmp_path: Path
) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "daemons.mc_master", "--config", str(master.config)],
        capture_output=True,
        timeout=20,
        check=False,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"HOME": str(tmp_path)},
    )
    assert second.returncode == 78
    assert second.stderr.count(b"\n") == 1
    assert b"choose another address" in second.stderr
    assert master.stop() == 0
