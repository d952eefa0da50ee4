"""Killing and stopping daemons under traffic: requests end clearly or are retried, nothing hangs, no token is wrong."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from kit.daemon import wait_for
from kit.models import VOCAB_SIZE, make_tiny_model
from kit.tokens import TokenClient, greedy, random_prompt

from daemons.client.cluster import ClusterClient
from daemons.core.errors import McError, Unavailable
from daemons.core.ids import RequestId
from daemons.protocol.request import Cancel
from daemons.rpc import SyncClient
from mcctl.bench import recover as recover_bench
from mcctl.bench.recover import RecoverBench, RecoverPlan
from mcctl.bench.recover_streams import CrowdPlan
from mcctl.cluster.plan import ClusterOptions
from mcctl.cluster.processes import LocalCluster

REJOIN_S = 40.0
"""The goal is 5 s on a quiet machine; a test is no stopwatch."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    model = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")
    options = ClusterOptions(
        model=model,
        num_prefill=2,
        num_decode=2,
        num_cachenodes=2,
        dtype="float32",
        kv_memory="32MiB",
        segment="64MiB",
    )
    with LocalCluster.temporary(options) as running:
        yield running


@pytest.fixture(autouse=True)
def _whole_again(cluster: LocalCluster) -> Iterator[None]:
    yield
    for name in cluster.pids:
        try:
            cluster.kill(name, signal.SIGCONT)
        except ProcessLookupError:
            cluster.restart(name)
    cluster.wait_ready(timeout_s=60)


@dataclass
class Traffic:
    """Threads that ask the gateway until told to end, and what they got."""

    url: str
    expected: str
    answers: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Traffic":
        self._threads = [threading.Thread(target=self._ask_on) for _ in range(4)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive(), "a request hangs"

    def wait_for(self, more: int, timeout_s: float = REJOIN_S) -> None:
        """Until `more` further answers came."""
        target = self.answers + more
        wait_for(lambda: self.answers >= target, timeout_s, f"{more} more answers")

    def _ask_on(self) -> None:
        with httpx.Client(timeout=20) as http:
            while not self._stop.is_set():
                began_s = time.monotonic()
                response = ask(http, self.url)
                self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
                if response.status_code == 200:
                    self.answers += 1
                    text = response.json()["choices"][0]["text"]
                    if text != self.expected:
                        self.wrong.append(text)
                else:
                    assert response.status_code in (429, 503), response.text
                    assert "error" in response.json()
                    self.refused += 1
                    time.sleep(0.05)


def ask(http: httpx.Client, url: str, length: int = 200, max_tokens: int = 24) -> httpx.Response:
    prompt = random_prompt(1, length, 250)
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return http.post(f"{url}/v1/completions", json=body)


@pytest.fixture
def traffic(cluster: LocalCluster) -> Iterator[Traffic]:
    with httpx.Client(timeout=30) as http:
        expected = ask(http, cluster.url).json()["choices"][0]["text"]
    with Traffic(cluster.url, expected) as running:
        running.wait_for(4)
        yield running
    assert not running.wrong
    assert running.slowest_s < 15


@pytest.mark.parametrize("name", ["mc-prefill", "mc-decode", "mc-cachenode"])
def test_killing_one_of_two_nodes_leaves_the_service_up(
    cluster: LocalCluster, traffic: Traffic, name: str
) -> None:
    cluster.kill(name)
    traffic.wait_for(10)
    assert traffic.refused == 0, "a killed node's requests are retried on the other one"
    cluster.restart(name)
    cluster.wait_ready(timeout_s=REJOIN_S)
    traffic.wait_for(10)


def test_without_a_master_requests_get_503_and_it_comes_back(
    cluster: LocalCluster, traffic: Traffic
) -> None:
    cluster.kill("mc-master")
    wait_for(lambda: traffic.refused > 0, 20, "a refusal")
    with httpx.Client(timeout=10) as http:
        began_s = time.monotonic()
        response = ask(http, cluster.url)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert time.monotonic() - began_s < 9
    cluster.restart("mc-master")
    traffic.wait_for(10)


def test_burst_is_answered_or_told_to_come_back(cluster: LocalCluster) -> None:
    """Three hundred at once: a master that is only busy is never taken for one that is gone."""

    async def burst() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=300)
        async with httpx.AsyncClient(timeout=120, limits=limits) as http:
            bodies = [
                {"model": "tiny", "prompt": random_prompt(i, 60, 250), "max_tokens": 4}
                for i in range(300)
            ]
            posts = [http.post(f"{cluster.url}/v1/completions", json=body) for body in bodies]
            return await asyncio.gather(*posts)

    responses = asyncio.run(burst())
    refused = [response for response in responses if response.status_code != 200]
    assert all(response.status_code == 429 for response in refused), refused[0].text
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    assert len(refused) < 100


def test_running_stream_survives_the_master(cluster: LocalCluster) -> None:
    body = {
        "model": "tiny",
        "prompt": random_prompt(9, 100, 250),
        "max_tokens": 600,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    lines = []
    with (
        httpx.Client(timeout=60) as http,
        http.stream("POST", f"{cluster.url}/v1/completions", json=body) as stream,
    ):
        for line in stream.iter_lines():
            if not line:
                continue
            lines.append(line)
            if len(lines) == 3:
                cluster.kill("mc-master")
    assert lines[-1] == "data: [DONE]"
    assert "error" not in lines[-2]


def test_bench_recover_prints_each_figure_beside_its_goal(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recover_bench, "LATER_S", 0.2)
    traffic = CrowdPlan(model="tiny", vocab_size=VOCAB_SIZE, streams=2, answer_tokens=100)
    plan = RecoverPlan(traffic=traffic, victims=("gateway", "master"), num_objects=300)
    rows = RecoverBench(cluster, plan, lambda _: None).run()
    assert [row.goal for row in rows] == [1.0, 5.0, 1.0, 0.0, 5.0, 10.0]
    assert [row.unit for row in rows].count("s") == 5
    assert all(row.value is not None for row in rows)
    assert rows[3].value == 0, rows[3].detail


@pytest.mark.parametrize("name", ["mc-decode", "mc-prefill", "mc-cachenode"])
def test_stopped_node_delays_but_never_falsifies(
    cluster: LocalCluster, traffic: Traffic, name: str
) -> None:
    cluster.kill(name, signal.SIGSTOP)
    time.sleep(4)
    traffic.wait_for(5)
    cluster.kill(name, signal.SIGCONT)
    traffic.wait_for(20)


def test_node_stopped_in_mid_pull_seals_and_says_nothing_wrong(cluster: LocalCluster) -> None:
    """SIGSTOP the copying side while prompts hand over, let sources be reused, SIGCONT, compare every answer."""
    prompts = [random_prompt(600 + i, 64 * (2 + i % 7) + 1, VOCAB_SIZE) for i in range(24)]
    with TokenClient(cluster.master) as client:
        expected = [client.generate(prompt, 8, cache="bypass").tokens for prompt in prompts]

    def run(answers: list[list[int] | None], indexes: range) -> None:
        with TokenClient(cluster.master) as own:
            for index in indexes:
                try:
                    answers[index] = own.generate(prompts[index], 8, timeout_s=20).tokens
                except McError:
                    answers[index] = None

    for name in ("mc-cachenode", "mc-decode"):
        answers: list[list[int] | None] = [None] * len(prompts)
        threads = [
            threading.Thread(target=run, args=(answers, range(first, len(prompts), 3)))
            for first in range(3)
        ]
        for thread in threads:
            thread.start()
        for _ in range(6):
            time.sleep(0.1)
            cluster.kill(name, signal.SIGSTOP)
            time.sleep(0.3)
            cluster.kill(name, signal.SIGCONT)
        for thread in threads:
            thread.join(timeout=120)
            assert not thread.is_alive(), "a request hangs"
        for got, right in zip(answers, expected, strict=True):
            assert got is None or got == right
    with TokenClient(cluster.master) as client:
        after = [client.generate(prompt, 8).tokens for prompt in prompts]
    assert after == expected, "a block that was sealed in the turmoil is wrong"


def test_cancelled_requests_free_everything(cluster: LocalCluster) -> None:
    body = {
        "model": "tiny",
        "prompt": random_prompt(10, 300, 250),
        "max_tokens": 1200,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    for _ in range(6):
        with (
            httpx.Client(timeout=30) as http,
            http.stream("POST", f"{cluster.url}/v1/completions", json=body) as stream,
        ):
            next(stream.iter_lines())

    def is_all_free() -> bool:
        with httpx.Client(timeout=5) as http:
            return _gauge(http, cluster, "decode", "mc_decode_running") == 0

    wait_for(is_all_free, 20, "every decode slot free")

    def are_all_listed_as_cancelled() -> bool:
        with ClusterClient(cluster.master) as client:
            listed = client.requests(6)
        return all(each.outcome == "cancelled" and each.why == "its client left" for each in listed)

    wait_for(are_all_listed_as_cancelled, 20, "all six requests listed as cancelled")


def test_pool_smaller_than_the_traffic_evicts_and_stays_right(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny", "llama")
    options = ClusterOptions(model=model, dtype="float32", kv_memory="16MiB", segment="4MiB")
    with LocalCluster.temporary(options) as small, TokenClient(small.master) as client:
        prompts = [random_prompt(700 + i, 512, VOCAB_SIZE) for i in range(16)]
        first = [client.generate(prompt, 4).tokens for prompt in prompts]
        second = [client.generate(prompt, 4) for prompt in prompts]
        assert [answer.tokens for answer in second] == first
        # A full pool may refuse a put until the next eviction, so the prompt is offered again.
        wait_for(lambda: client.generate(prompts[-1], 4).num_reused > 0, 20, "a reused block")


def _gauge(http: httpx.Client, cluster: LocalCluster, role: str, name: str) -> int:
    total = 0
    for daemon in cluster.plan.daemons:
        if daemon.role == role:
            text = http.get(f"http://{daemon.tables['node']['metrics']}/metrics").text
            line = next(x for x in text.splitlines() if x.startswith(f"{name} "))
            total += int(float(line.split()[1]))
    return total


def test_answers_of_one_token_give_the_prefill_slot_back(cluster: LocalCluster) -> None:
    """The pulls may all end before the first token comes; prefill must still hear that it may let go."""
    with httpx.Client(timeout=30) as http:

        def held() -> int:
            return _gauge(http, cluster, "prefill", "mc_prefill_held_slots")

        time.sleep(1.5)  # the gauge is set once a second
        before = held()  # a decode node that was killed leaves its slots to hold_s
        for _ in range(2):
            for length in (1, 2, 63, 64, 65, 200, 256, 257, 400, 512):
                assert ask(http, cluster.url, length, max_tokens=1).status_code == 200
        time.sleep(1.5)
        wait_for(lambda: held() <= before, 20, "every slot free, long before hold_s")


def test_cancelled_head_of_the_queue_lets_the_next_start(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny", "llama")
    options = ClusterOptions(model=model, dtype="float32", kv_memory="2MiB", segment="16MiB")
    with LocalCluster.temporary(options) as small:
        ended: list[str] = []

        def run(request_id: str, length: int, max_tokens: int) -> None:
            prompt = random_prompt(length, length, VOCAB_SIZE)
            with TokenClient(small.master) as client:
                plan = client.plan(prompt, max_tokens, request_id=RequestId(request_id))
                try:
                    client.run(plan, prompt, greedy(max_tokens))
                except Unavailable:
                    request_id += " cancelled"
            ended.append(request_id)

        threads = []
        for what in (("long", 40, 1700), ("head", 1000, 500), ("next", 30, 4)):
            threads.append(threading.Thread(target=run, args=what))
            threads[-1].start()
            time.sleep(0.2)
        decode = next(d for d in small.plan.daemons if d.role == "decode")
        with SyncClient(str(decode.tables["node"]["listen"])) as client:
            client.request(Cancel(request_id=RequestId("head")))
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive(), "a request hangs"
    assert set(ended[:2]) == {"head cancelled", "next"}, (
        "who of the two hears of it first is chance"
    )
    assert ended[2] == "long"
