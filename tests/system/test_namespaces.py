"""Hosts as network namespaces joined by rate-limited veth links: tcp between them, links that break and come back.

Needs root, ip and tc; otherwise skipped with the reason. Touches nothing outside the namespaces it makes.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.remote_memory import pattern

from daemons.core.units import MIB

TESTS = Path(__file__).parents[1]
LINK_MBIT = 100
"""Slow enough that a busy machine is no limit."""
LINK_BYTES_PER_S = LINK_MBIT * 125_000
SEED = 7


def _why_not() -> str:
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (iproute2)"
    name = f"mc-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


@pytest.fixture(scope="module", autouse=True)
def _has_namespaces() -> None:
    reason = _why_not()
    if reason:
        pytest.skip(reason)


@dataclass
class Hosts:
    """`a` serves, `b` reads; link i joins 10.251.i.1 of a with 10.251.i.2 of b, the last one with c if apart."""

    num_links: int
    are_apart: bool = False
    a: str = f"mc-a-{os.getpid()}"
    b: str = f"mc-b-{os.getpid()}"
    c: str = f"mc-c-{os.getpid()}"
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def make(self) -> None:
        for name in (self.a, self.b, self.c):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for link in range(self.num_links):
            far = self.c if self.are_apart and link == self.num_links - 1 else self.b
            # fmt: off
            ip("-n", self.a, "link", "add", f"a{link}", "type", "veth", "peer", f"b{link}", "netns", far)
            # fmt: on
            for name, side, number in ((self.a, "a", 1), (far, "b", 2)):
                device = f"{side}{link}"
                ip("-n", name, "address", "add", f"10.251.{link}.{number}/24", "dev", device)
                ip("-n", name, "link", "set", device, "up")
            limit = ["rate", f"{LINK_MBIT}mbit", "burst", "256k", "latency", "100ms"]
            command = ["tc", "-n", self.a, "qdisc", "add", "dev", f"a{link}", "root", "tbf", *limit]
            subprocess.run(command, check=True)

    def remove(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for name in (self.a, self.b, self.c):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def cut(self, link: int) -> None:
        """As if the cable were pulled: both ends see it."""
        ip("-n", self.a, "link", "set", f"a{link}", "down")

    def mend(self, link: int) -> None:
        ip("-n", self.a, "link", "set", f"a{link}", "up")

    def start(self, namespace: str, *words: str) -> "subprocess.Popen[str]":
        """A Python module in a namespace."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
        )
        self.processes.append(process)
        return process

    def offer(self, num_bytes: int, links: list[int]) -> str:
        """Memory of `pattern(SEED)` at `a`, reached over these links."""
        hosts = [f"10.251.{link}.1" for link in links]
        words = ["kit.remote_memory", "offer", str(SEED), str(num_bytes), *hosts]
        region: str = line_of(self.start(self.a, *words))["region"]
        return region

    def start_reading(
        self, region: str, *, at: str = "", timeout_s: float = 30
    ) -> "subprocess.Popen[str]":
        return self.start(at or self.b, "kit.remote_memory", "stripe", str(timeout_s), region)

    def read_all(self, region: str) -> Any:
        return lines_of(self.start_reading(region))[-1]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def line_of(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        pytest.fail(f"it ended: {process.stderr.read()}")
    return json.loads(line)


def lines_of(process: "subprocess.Popen[str]", timeout_s: float = 60) -> list[Any]:
    out, errors = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, errors
    return [json.loads(line) for line in out.splitlines()]


@contextmanager
def hosts_with(num_links: int, *, are_apart: bool = False) -> Iterator[Hosts]:
    hosts = Hosts(num_links, are_apart)
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()


def test_probe_from_another_host_measures_the_limited_link(tmp_path: Path) -> None:
    with hosts_with(1) as hosts:
        master = "tcp://10.251.0.1:7700"
        settings = {
            "daemons.mc_master": [
                f'node.listen="{master}"',
                'node.events="tcp://10.251.0.1:7701"',
                f'node.state_dir="{tmp_path}"',
            ],
            "daemons.mc_cachenode": [
                'node.listen="tcp://10.251.0.1:7710"',
                'node.id="far"',
                f'master.endpoint="{master}"',
                'transfer.host="10.251.0.1"',
                f'transfer.unix_dir="{tmp_path}"',
                f'segment.directory="{tmp_path}"',
                'segment.size="16MiB"',
            ],
        }
        for module, values in settings.items():
            hosts.start(hosts.a, module, *(word for value in values for word in ("--set", value)))
        result = _probe_until_there(hosts, master)
    path = result["paths"][0]
    measured = path["measured"]
    assert (path["source"], path["target"], path["error"]) == ("here", "far", "")
    assert measured["transport"] == "tcp"
    assert measured["nic"] == "b0"
    assert 0.4 < measured["bytes_per_s"] / LINK_BYTES_PER_S < 1.6  # the burst comes on top
    assert measured["link_bytes_per_s"] is not None, "a veth says 10 Gbit/s"
    assert "of the speed of b0" in result["warnings"][0]


def _probe_until_there(hosts: Hosts, master: str) -> Any:
    deadline_s = time.monotonic() + 30
    while True:
        words = ["topology", "probe", "--from-here", "--endpoint", master, "--output", "json"]
        process = hosts.start(hosts.b, "mcctl", *words)
        out, errors = process.communicate(timeout=30)
        if process.returncode == 0 and json.loads(out)["paths"]:
            return json.loads(out)
        assert time.monotonic() < deadline_s, errors
        time.sleep(0.2)


def test_link_down_is_a_clean_error_in_time_and_reading_goes_on_after_it() -> None:
    with hosts_with(1) as hosts:
        region = hosts.offer(8 * MIB, [0])
        reader = hosts.start(hosts.b, "kit.remote_memory", "read", "6", "0.5", region)
        line_of(reader)
        hosts.cut(0)
        time.sleep(1.5)
        hosts.mend(0)
        results = lines_of(reader)
    failed = [i for i, result in enumerate(results) if "error" in result]
    assert failed, "a READ over a cut link must fail"
    assert {results[i]["error"] for i in failed} == {"Unavailable"}
    # 0.5 s is what the reader asked for; a busy machine may give it the CPU later.
    assert all(results[i]["took_s"] < 5.0 for i in failed)
    after = results[failed[-1] + 1 :]
    assert len(after) >= 5, "reading goes on when the link is back"
    memory = pattern(SEED, 8 * MIB)
    for result in results:
        if "error" not in result:
            piece = memory[result["offset"] : result["offset"] + MIB]
            assert result["checksum"] == int(piece.sum()), "wrong bytes"


def test_two_links_add_up() -> None:
    gains: list[float] = []
    with hosts_with(2) as hosts:
        one, both = hosts.offer(16 * MIB, [0]), hosts.offer(16 * MIB, [0, 1])
        while len(gains) < 3 and max(gains, default=0) < 1.5:  # other work here only slows
            alone = hosts.read_all(one)
            together = hosts.read_all(both)
            _check_bytes(together, 16 * MIB)
            gains.append(alone["took_s"] / together["took_s"])
    assert max(gains) > 1.5, gains
    shares = together["carried"].values()
    assert min(shares) > 0.3 * sum(shares)


def test_one_of_two_links_down_loses_nothing_and_is_used_again_when_it_is_back() -> None:
    size = 80 * MIB
    with hosts_with(2) as hosts:
        reader = hosts.start_reading(hosts.offer(size, [0, 1]), timeout_s=60)
        seen = [line_of(reader)]
        while min(seen[-1]["carried"].values(), default=0) < 4 * MIB:
            seen.append(line_of(reader))
        lost = max(seen[-1]["carried"], key=lambda name: name.startswith("10.251.1."))
        hosts.cut(1)
        while seen[-1]["states"][lost] == "up":
            seen.append(line_of(reader))
        at_failure = seen[-1]["carried"][lost]
        hosts.mend(1)
        results = lines_of(reader)
    _check_bytes(results[-1], size)
    assert results[-1]["carried"][lost] >= at_failure + 4 * MIB, "it carries its share again"


def test_three_hosts_read_from_one_over_the_link_that_each_has() -> None:
    with hosts_with(2, are_apart=True) as hosts:
        region = hosts.offer(8 * MIB, [0, 1])
        readers = [hosts.start_reading(region, at=name) for name in (hosts.b, hosts.c)]
        results = [lines_of(reader)[-1] for reader in readers]
    for link, result in enumerate(results):
        _check_bytes(result, 8 * MIB)
        used = {name for name, num_bytes in result["carried"].items() if num_bytes}
        assert [name.rpartition(":")[0] for name in used] == [f"10.251.{link}.1"]


def _check_bytes(result: Any, size: int) -> None:
    memory = pattern(SEED, size)
    assert result["checksum"] == int(memory.sum(dtype=np.uint64))
    assert result["digest"] == bytes(memory[:: MIB // 4]).hex()
