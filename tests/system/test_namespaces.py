"""Hosts as network namespaces: tcp between them, links that break and come back."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.hosts import LINK_BYTES_PER_S, SEED, Hosts, hosts_with, line_of, lines_of, why_no_hosts
from kit.remote_memory import pattern

from daemons.core.units import MIB


@pytest.fixture(scope="module", autouse=True)
def _has_namespaces() -> None:
    reason = why_no_hosts()
    if reason:
        pytest.skip(reason)


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
            words = (word for value in values for word in ("--set", value))
            hosts.start(hosts.a, module, "--insecure", *words)
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
    assert all(results[i]["took_s"] < 15.0 for i in failed)
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
