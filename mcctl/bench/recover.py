"""`mcctl bench recover`: each daemon of a cluster killed in turn under traffic, and how long the others felt it.

Every figure stands beside its goal. A busy machine is slow to start a process: the CPU time that a daemon took until
it was back is said too, and the longest silence of the same streams while nothing was hurt.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import httpx
import msgspec

from daemons.client.cluster import ClusterClient
from daemons.client.process_usage import cpu_s
from daemons.core.errors import McError, Unavailable
from daemons.core.units import format_duration
from mcctl.bench import recover_store
from mcctl.bench.patience import PATIENCE_S
from mcctl.bench.recover_streams import PROMPT_TOKENS, Crowd, CrowdPlan
from mcctl.cluster.http_status import get_status
from mcctl.cluster.processes import LocalCluster
from mcctl.cluster.record import Role
from mcctl.openai_stream import OpenAiClient
from mcctl.render import Column

Progress = Callable[[str], object]

VICTIMS: Final[tuple[Role, ...]] = ("prefill", "decode", "cachenode", "gateway", "master")
SILENCE_GOAL_S: Final = 1.0
REFUSAL_GOAL_S: Final = 1.0
REJOIN_GOAL_S: Final = 5.0
LATER_S: Final = 1.5
"""Requests that begin within it after a kill may still be sent to the dead."""
_POLL_S: Final = 0.05


class RecoverRow(msgspec.Struct, frozen=True, kw_only=True):
    """One figure beside its goal. `value` is null where it did not come to pass while it was waited for."""

    what: str
    value: float | None
    goal: float
    unit: str
    is_met: bool
    detail: str


class RecoverResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench recover --output json` prints; fields are only ever added."""

    model: str
    engine: str
    """The hardware profile of paced instances, or the dtype of those that compute."""
    num_objects: int
    load_1m: float
    """Of this machine, when it ended: processes that ran or wanted to, by its own count."""
    rows: list[RecoverRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverPlan:
    """`victims` by role; objects are put only where `num_objects` is not 0."""

    traffic: CrowdPlan
    victims: Sequence[Role] = VICTIMS
    num_objects: int = 0


class RecoverBench:
    """Runs a plan on a cluster of two prefill and two decode nodes at least. Everything lives again afterwards."""

    def __init__(self, cluster: LocalCluster, plan: RecoverPlan, progress: Progress) -> None:
        self._cluster = cluster
        self._plan = plan
        self._progress = progress
        self._rows: list[RecoverRow] = []

    def run(self) -> list[RecoverRow]:
        for role in self._plan.victims:
            self._progress(f"mc-{role} dies under traffic")
            if role == "master":
                self._kill_master()
            else:
                self._kill_node(role)
            self._cluster.wait_ready()
        if "cachenode" in self._plan.victims:
            self._progress("a cache node that holds objects dies, and one stops")
            for found in recover_store.nodes_that_fail(self._cluster):
                self._add(found.what, found.value_s, found.goal_s, found.detail)
        if self._plan.num_objects:
            found = recover_store.master_restart(
                self._cluster, self._plan.num_objects, self._progress
            )
            self._add(found.what, found.value_s, found.goal_s, found.detail)
        return self._rows

    def _kill_node(self, role: Role) -> None:
        name = f"mc-{role}"
        with OpenAiClient(self._cluster.url) as client, Crowd(client, self._plan.traffic) as crowd:
            self._cluster.kill(name)
            hurt_s = time.monotonic()
            time.sleep(LATER_S)
            crowd.end()
            after = crowd.aftermath(hurt_s, hurt_s + LATER_S)
        what = f"{name} killed: until its requests end or go on elsewhere"
        self._add(what, after.silence_s, SILENCE_GOAL_S, after.said)
        # One connection for all looks: what they cost, the daemon that starts beside them is late by.
        with ClusterClient(self._cluster.master, timeout_s=1.0) as master:
            is_back = self._is_gateway_back if role == "gateway" else partial(self._is_back, master)
            self._rejoin(name, is_back)

    def _kill_master(self) -> None:
        with OpenAiClient(self._cluster.url) as client, Crowd(client, self._plan.traffic) as crowd:
            self._cluster.kill("mc-master")
            hurt_s = time.monotonic()
            refused_s, said = self._refusal()
            self._add(
                "mc-master killed: until a new request is told 503 with Retry-After",
                refused_s,
                REFUSAL_GOAL_S,
                said,
            )
            crowd.end()
            after = crowd.aftermath(hurt_s, hurt_s, long_only=True)
        self._rows.append(
            RecoverRow(
                what="streams that run on without a master: failed",
                value=after.num_failed,
                goal=0.0,
                unit="requests",
                is_met=after.num_failed == 0,
                detail=after.said,
            )
        )
        self._rejoin("mc-master", self._is_served)

    def _refusal(self) -> tuple[float | None, str]:
        """Seconds until a request that is sent now is refused as it should be."""
        began_s = time.monotonic()
        response = self._ask_little()
        took_s = time.monotonic() - began_s
        wait = response.headers.get("retry-after")
        said = f"HTTP {response.status_code}, Retry-After: {wait or 'none'}"
        return (took_s if response.status_code == 503 and wait else None), said

    def _rejoin(self, name: str, is_back: Callable[[str], bool]) -> None:
        self._cluster.restart(name)
        began_s = time.monotonic()
        took_s = None
        while time.monotonic() - began_s < PATIENCE_S:
            if is_back(name):
                took_s = time.monotonic() - began_s
                break
            self._cluster.check_running()
            time.sleep(_POLL_S)
        used_s = cpu_s(self._cluster.pids[name])
        what = f"{name} started again: until it serves"
        self._add(what, took_s, REJOIN_GOAL_S, f"{used_s:.1f} s of CPU")

    def _is_back(self, master: ClusterClient, name: str) -> bool:
        pid = self._cluster.pids[name]
        try:
            nodes = master.nodes().nodes
        except McError:
            return False
        return any(each.node.pid == pid and each.state == "alive" for each in nodes)

    def _is_gateway_back(self, _: str) -> bool:
        return get_status(f"{self._cluster.url}/health", timeout_s=1.0) == 200

    def _is_served(self, _: str) -> bool:
        """A request is answered, which takes a prefill and a decode node that joined the new master."""
        return self._ask_little().status_code == 200

    def _ask_little(self) -> httpx.Response:
        first = self._plan.traffic.vocab_size // 2
        prompt = list(range(first, first + PROMPT_TOKENS))
        body = {"model": self._plan.traffic.model, "prompt": prompt, "max_tokens": 1}
        try:
            # Certificates, which nobody shows here, would take 50 ms to load.
            with httpx.Client(timeout=PATIENCE_S, trust_env=False, verify=False) as http:
                return http.post(f"{self._cluster.url}/v1/completions", json=body)
        except httpx.HTTPError as error:
            raise Unavailable(f"the gateway at {self._cluster.url} failed: {error}") from None

    def _add(self, what: str, value_s: float | None, goal_s: float, detail: str) -> None:
        self._rows.append(
            RecoverRow(
                what=what,
                value=value_s,
                goal=goal_s,
                unit="s",
                is_met=value_s is not None and value_s <= goal_s,
                detail=detail,
            )
        )


def _figure(row: RecoverRow, value: float | None) -> str:
    if value is None:
        return "never"
    return format_duration(value) if row.unit == "s" else f"{value:g}"


COLUMNS: Final = [
    Column("measure", lambda row: row.what),
    Column("value", lambda row: _figure(row, row.value), is_number=True),
    Column("goal", lambda row: _figure(row, row.goal), is_number=True),
    Column("met", lambda row: "yes" if row.is_met else "NO"),
    Column("what was seen", lambda row: row.detail, extra=1),
]
