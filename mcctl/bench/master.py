"""mcctl bench master: what a master takes for each block, with synthetic cache nodes that report over the wire.

A figure is per second of the master's own CPU time, all its threads together, so that it is that of one core and does
not depend on what else runs here; the rate by the clock stands beside it. Limits are CPU time of this process.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Final

import msgspec

from daemons.client.process_usage import cpu_s, rss_bytes
from daemons.client.round_trip import RoundTrips, bare_round_trips
from daemons.client.synthetic_nodes import (
    CHAIN_BLOCKS,
    NAMESPACE,
    SyntheticNode,
    SyntheticNodes,
    block_hash,
    chain,
    sealed_block,
    sealed_object,
)
from daemons.core.ids import NodeId
from daemons.protocol.base import Message
from daemons.protocol.lookup import Locate, LocateReply, Match, MatchReply
from daemons.protocol.messages import decode_request, encode
from daemons.protocol.node import ListNodes, ListNodesReply
from daemons.protocol.objects import ExistNames, ExistNamesReply
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report
from mcctl.render import Column

Progress = Callable[[str], object]
_ANNOUNCED: Final = 2000
"""Blocks a report when a node announces, as cache nodes do it."""
_BATCH: Final = 256
"""Blocks a report while nodes are put to: what comes within a few milliseconds."""
_SMALL: Final = 32
_NAMES: Final = 10_000
_LIVE_BLOCKS: Final = 20_000
_UNDER_WAY: Final = 32
"""Look-ups at a time, as of so many clients that each wait for one answer."""
_WARM_UP: Final = 20
_ECHOES: Final = 1000
_ROUNDS: Final = 5
DEATH_S: Final = 8.0
"""And up to twice as long again, until the master has noticed."""


class MasterRow(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `value` and `limit` are in `unit`; `wall` is the same by the clock where `value` is per CPU second.

    `ratio` is the value over the limit's where more is better, else the limit's over its own.
    """

    what: str
    value: float
    unit: str
    wall: float | None = None
    limit: float | None = None
    ratio: float | None = None
    limit_is: str = ""


class MasterResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench master --output json` prints; fields are only ever added."""

    num_blocks: int
    rows: list[MasterRow]


@dataclass(frozen=True, slots=True)
class MasterPlan:
    """`num_blocks` are announced, then put and evicted once in each of `num_rounds` rounds."""

    num_blocks: int
    num_rounds: int = _ROUNDS


@dataclass(slots=True)
class _Use:
    """Of the master and of the clock, for so many blocks."""

    num_blocks: int
    cpu_s: float
    wall_s: float


@dataclass(slots=True)
class MasterBench:
    """`pid` is the master's, which serves nobody else."""

    pid: int
    nodes: SyntheticNodes
    round_trip: RoundTrips
    plan: MasterPlan
    progress: Progress
    rows: list[MasterRow] = field(default_factory=list)

    def run(self) -> MasterResult:
        """The order matters: each step finds what the one before left."""
        live = self.nodes.join("live", 1 << 30)
        self.nodes.put(live, range(1 << 40, (1 << 40) + _LIVE_BLOCKS), _BATCH)
        names = [b"name-%d" % number for number in range(_NAMES)]
        self.nodes.put_blocks(
            live, SealedBlocks.pack([sealed_object(n, name) for n, name in enumerate(names)])
        )
        self.nodes.settle(live)
        big = self.nodes.join("big", self.plan.num_blocks)
        self._announce(big)
        self._look_up(names)
        self._put_rounds(big)
        self._death(big)
        return MasterResult(num_blocks=self.plan.num_blocks, rows=self.rows)

    def _announce(self, big: SyntheticNode) -> None:
        self.progress(f"a node announces {self.plan.num_blocks} blocks")
        before = rss_bytes(self.pid)
        full, big.max_blocks = big.max_blocks, 2 * big.max_blocks
        use = self._use(
            self.plan.num_blocks,
            lambda: self.nodes.put(big, range(self.plan.num_blocks), _ANNOUNCED),
        )
        big.max_blocks = full
        grown = (rss_bytes(self.pid) - before) / self.plan.num_blocks
        self._rate(f"announce, {_ANNOUNCED} a report", use, *_decoding(_ANNOUNCED))
        self.rows.append(MasterRow(what="memory of a replica", value=grown, unit="bytes"))

    def _put_rounds(self, big: SyntheticNode) -> None:
        """The node is full from here on: each block that comes makes one go."""
        plan, sizes = self.plan, []
        uses = []
        for number in range(1, plan.num_rounds + 1):
            self.progress(f"round {number} of {plan.num_rounds}: put and evict")
            first = number * plan.num_blocks
            fresh = range(first, first + plan.num_blocks)
            uses.append(
                self._use(plan.num_blocks, lambda fresh=fresh: self.nodes.put(big, fresh, _BATCH))  # type: ignore[misc]
            )
            sizes.append(rss_bytes(self.pid))
        best = min(uses, key=lambda use: use.cpu_s)
        self._rate(f"put and evict, {_BATCH} a report", best, *_decoding(_BATCH))
        if len(sizes) > 1:
            row = MasterRow(
                what=f"memory after round {plan.num_rounds}",
                value=sizes[-1] / 1e6,
                unit="MB",
                limit=sizes[1] / 1e6,
                ratio=sizes[1] / sizes[-1],
                limit_is="after round 2",
            )
            self.rows.append(row)

    def _look_up(self, names: Sequence[bytes]) -> None:
        self.progress("look-ups")
        chains = [chain(number) for number in range(self.plan.num_blocks // CHAIN_BLOCKS)][:400]
        parts = [hashes[at : at + _SMALL] for hashes in chains for at in range(0, 224, _SMALL)]
        for size, keys in ((_SMALL, parts), (CHAIN_BLOCKS, chains)):
            matches = [Match(hashes=each) for each in keys]
            self._asked(f"match, {size} a call", matches, MatchReply, size)
        locates = [Locate(hashes=part) for part in parts]
        self._asked(f"locate, {_SMALL} a call", locates, LocateReply, _SMALL)
        for size in (_SMALL, 1000):
            asked = [
                ExistNames(namespace=NAMESPACE, names=list(names[at : at + size]))
                for at in range(0, len(names) - size + 1, size)
            ] * (10 if size == _SMALL else 50)
            self._asked(f"exists, {size} a call", asked, ExistNamesReply, size)
        self._match_time(chains[0])

    def _asked(
        self,
        what: str,
        messages: Sequence[Message],
        reply_type: type[Message],
        size: int,
    ) -> None:
        """`size` blocks in each message. The limit: what a bare echo of as many bytes takes, and the codec."""
        [reply] = self.nodes.ask_all(messages[-1:], reply_type)
        use = self._use(
            size * len(messages), lambda: self.nodes.ask_all(messages, reply_type, _UNDER_WAY)
        )
        asked, answered = encode(messages[-1]), encode(reply)
        codec_s = _cpu_of(lambda: (decode_request(asked), encode(reply)))
        echo_s = self._echo_cpu(max(asked, answered, key=len))
        self._rate(what, use, size / (codec_s + echo_s), "a bare echo of the reply, and the codec")

    def _echo_cpu(self, message: bytes) -> float:
        """CPU seconds of the process that gives it back; the nodes go on beating."""
        before_s = cpu_s(self.round_trip.pid)
        for number in range(_ECHOES):
            self.round_trip(message)
            if number % 100 == 0:
                self.nodes.rest(0.005)
        return (cpu_s(self.round_trip.pid) - before_s) / _ECHOES

    def _match_time(self, hashes: Sequence[bytes]) -> None:
        match = Match(hashes=[block_hash(n) for n in range(len(hashes))])
        times, limits = [], []
        for _ in range(200):
            limits.append(self.round_trip())
            times.append(self.nodes.time_of(match, MatchReply))
        self._time("match of 250 at the client, p50", median(times), median(limits))

    def _death(self, big: SyntheticNode) -> None:
        """Look-ups of what another node holds, while the master notices and cleans up."""
        self.progress(f"a node of {big.num_blocks} blocks dies")
        match = Match(hashes=[block_hash((1 << 40) + n) for n in range(_SMALL)])
        before = [self.nodes.time_of(match, MatchReply) for _ in range(300)]
        self.nodes.kill(big)
        times, limits, is_known = [], [], False
        end_s = time.monotonic() + DEATH_S
        latest_s = end_s + 2 * DEATH_S
        while not is_known and time.monotonic() < latest_s:
            limits.append(self.round_trip())
            times.append(self.nodes.time_of(match, MatchReply))
            self.nodes.rest(0.001)
            if time.monotonic() >= end_s:
                end_s, is_known = time.monotonic() + 1.0, self._is_dead(big.node)
        what = (
            "look-up while a node dies, p99" if is_known else "look-up, p99; the node is not dead"
        )
        self._time(f"{what} ({_p99(before) * 1e6:.0f} before)", _p99(times), _p99(limits))

    def _is_dead(self, node: NodeId) -> bool:
        [reply] = self.nodes.ask_all([ListNodes()], ListNodesReply)
        return all(each.node.node != node or each.state == "dead" for each in reply.nodes)

    def _use(self, num_blocks: int, work: Callable[[], object]) -> _Use:
        cpu_before_s, started_s = cpu_s(self.pid), time.perf_counter()
        work()
        wall_s = time.perf_counter() - started_s
        return _Use(num_blocks, max(0.01, cpu_s(self.pid) - cpu_before_s), wall_s)

    def _rate(self, what: str, use: _Use, limit: float, limit_is: str) -> None:
        value = use.num_blocks / use.cpu_s
        row = MasterRow(
            what=what,
            value=value,
            unit="blocks/s",
            wall=use.num_blocks / use.wall_s,
            limit=limit,
            ratio=value / limit,
            limit_is=limit_is,
        )
        self.rows.append(row)

    def _time(self, what: str, value_s: float, limit_s: float) -> None:
        row = MasterRow(
            what=what,
            value=value_s * 1e6,
            unit="us",
            limit=limit_s * 1e6,
            ratio=limit_s / value_s,
            limit_is="one bare ZeroMQ round trip",
        )
        self.rows.append(row)


def run(master: str, pid: int, plan: MasterPlan, progress: Progress) -> MasterResult:
    with (
        bare_round_trips() as round_trip
    ):  # before the nodes, which have to beat while a process starts
        nodes = SyntheticNodes(master)
        try:
            return MasterBench(pid, nodes, round_trip, plan, progress).run()
        finally:
            nodes.close()


def _decoding(batch: int) -> tuple[float, str]:
    """Blocks a CPU second, and what that is."""
    report = Report(
        node=NodeId("big"),
        epoch=1,
        sequence=1,
        sealed=SealedBlocks.pack(map(sealed_block, range(batch))),
        freed=[],
        used_bytes=0,
        capacity_bytes=0,
    )
    payload = encode(report)
    return batch / _cpu_of(lambda: decode_request(payload)), "decoding the same reports"


def _cpu_of(work: Callable[[], object], num_rounds: int = 200) -> float:
    """Seconds of this process's CPU."""
    for _ in range(_WARM_UP):
        work()
    started_s = time.process_time()
    for _ in range(num_rounds):
        work()
    return max(1e-9, time.process_time() - started_s) / num_rounds


def _p99(times: Sequence[float]) -> float:
    return quantiles(times, n=100)[98]


def _or_dash(value: float | None, form: str = ",.0f") -> str:
    return "-" if value is None else format(value, form)


COLUMNS: Final = [
    Column("measure", lambda row: row.what),
    Column("value", lambda row: f"{row.value:,.0f}", is_number=True),
    Column("by the clock", lambda row: _or_dash(row.wall), is_number=True),
    Column("limit", lambda row: _or_dash(row.limit), is_number=True),
    Column("unit", lambda row: row.unit),
    Column("ratio", lambda row: _or_dash(row.ratio, ".2f"), is_number=True),
    Column("the limit is", lambda row: row.limit_is, extra=1),
]
