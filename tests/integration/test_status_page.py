"""The status page of a gateway, over HTTP and in a real browser; what the cluster is called is meant to hurt it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from integration.test_gateway import (
    MODEL,
    Bench,
    ScriptedDecode,
    describe_node,
    running_gateway,
    says,
)
from kit.browser import see
from kit.daemon import wait_for

from daemons.config.mc_gateway import TenantsSection
from daemons.core.ids import NodeId, RequestId
from daemons.mc_gateway import board
from daemons.mc_gateway.page_view import MAX_NODES
from daemons.mc_gateway.tenants import may_read_metrics
from daemons.protocol.cache import TierUsage
from daemons.protocol.node import ListedNode, NodeState
from daemons.protocol.request_list import ListedRequest
from mcctl.main import main

EVIL = (
    "<img src=x onerror=document.title='owned'>",
    '"><script>document.title="owned"</script>',
    "</td></table><style>*{display:none}</style>",
    "__proto__",
    "a" * 400,
)
GIB = 1 << 30


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with running_gateway(tmp_path, [ScriptedDecode("decode", says("yes"))]) as running:
        yield running


def listed(name: str, state: NodeState = "alive") -> ListedNode:
    return ListedNode(
        node=describe_node(name, "cachenode", host=name),
        state=state,
        load=None,
        used_bytes=GIB,
        capacity_bytes=4 * GIB,
        num_blocks=10,
        joined_s=5.0,
        last_beat_s=0.1,
        tiers={"ssd": TierUsage(num_blocks=3, used_bytes=GIB, capacity_bytes=2 * GIB)},
    )


def asked(request_id: str, prefill: str, actual_ttft_s: float | None = 0.5) -> ListedRequest:
    return ListedRequest(
        request_id=RequestId(request_id),
        model=prefill,
        state="running" if actual_ttft_s is None else "done",
        age_s=3.0,
        num_prompt_tokens=1000,
        num_matched_tokens=250,
        num_generated_tokens=7,
        prefill=NodeId(prefill),
        decode=NodeId(prefill),
        predicted_ttft_s=0.25,
        actual_ttft_s=actual_ttft_s,
        policy="time",
        candidates=[],
    )


def fill(bench: Bench) -> None:
    bench.master.nodes = [listed("cachenode-a"), *(listed(name) for name in EVIL)]
    bench.master.requests = [
        asked("r1", "prefill-a"),
        *(asked(name, name, None) for name in EVIL),
    ]
    bench.master.pool = msgspec.structs.replace(
        bench.master.pool,
        num_blocks=60,
        used_bytes=6 * GIB,
        capacity_bytes=24 * GIB,
        num_lookup_blocks=100,
        num_hit_blocks=80,
        blocks_by_model=dict.fromkeys(EVIL, 12),
        tiers={"ssd": TierUsage(num_blocks=18, used_bytes=6 * GIB, capacity_bytes=12 * GIB)},
    )


def data(bench: Bench) -> dict[str, Any]:
    reply = bench.http.get("/status/data.json")
    assert reply.status_code == 200, reply.text
    assert isinstance(reply.json(), dict)
    return dict(reply.json())


def test_page_shows_the_cluster_and_runs_nothing_of_it(bench: Bench) -> None:
    fill(bench)
    seen = see(f"{bench.url}/status")
    assert seen.console == []
    assert "<title>Mooncake MC</title>" in seen.dom
    assert "<img" not in seen.dom
    assert seen.dom.count("<script") == 1
    assert "<style" not in seen.dom
    for name in EVIL[:3]:
        assert name.replace("<", "&lt;").replace(">", "&gt;") in seen.dom
    assert seen.text("health") == "serving"
    for words in ("cachenode-a", "DRAM 25%, SSD 50%", "__proto__", "alive"):
        assert words in seen.dom, words
    for words in ("prefill-a", "250 ms", "500 ms", "25%", "running"):
        assert words in seen.dom, words
    # Of each of six nodes a map of both tiers, a hundred squares each.
    assert seen.dom.count("<rect") == 6 * 2 * 100
    assert seen.dom.count('class="used"') == 6 * (25 + 50)


def test_page_says_when_the_master_is_silent(bench: Bench) -> None:
    bench.master.is_silent = True
    seen = see(f"{bench.url}/status")
    assert seen.text("health") == "no answer"
    assert "I say &lt;b&gt;nothing&lt;/b&gt;" in seen.dom
    assert bench.http.get("/status/data.json").status_code == 503


def test_page_asks_again_and_names_nodes_that_are_not_heard_of(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "FRESH_S", 0.0)
    bench.master.nodes = [listed("lost", "suspect")]
    seen = see(f"{bench.url}/status", run_s=5.0)
    assert seen.text("health") == "degraded"
    assert "Not heard of: lost" in seen.dom
    assert 2 <= bench.master.num_looks <= 5


def test_answers_let_the_page_load_nothing_from_elsewhere(bench: Bench) -> None:
    for path in ("/status", "/status/page.js", "/status/page.css", "/status/icon.svg"):
        reply = bench.http.get(path)
        assert reply.status_code == 200
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "://" not in reply.text.replace("http://www.w3.org/", "")
    found = bench.http.get("/", follow_redirects=False)
    assert (found.status_code, found.headers["location"]) == (303, "/status")
    for path in ("/status/..%2fpage.py", "/status/index", "/status/nothing"):
        assert bench.http.get(path).status_code == 404
    assert bench.http.post("/status/data.json", json={}).status_code == 405


def test_master_is_asked_once_for_many_readers(bench: Bench) -> None:
    fill(bench)
    first = data(bench)
    bench.master.pool = msgspec.structs.replace(bench.master.pool, num_blocks=61)
    assert data(bench)["num_blocks"] == first["num_blocks"] == 60
    wait_for(lambda: data(bench)["num_blocks"] == 61)


def test_hits_are_sampled_while_nobody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "SAMPLE_S", 0.05)
    with running_gateway(tmp_path, [ScriptedDecode("decode", says("yes"))]) as bench:
        fill(bench)
        wait_for(lambda: any(hit["num_lookups"] == 100 for hit in data(bench)["hits"]))
        found = next(hit for hit in data(bench)["hits"] if hit["num_lookups"] == 100)
        assert found["num_hits"] == 80
        # A master that begins anew counts from nothing: no sample is below zero.
        bench.master.pool = msgspec.structs.replace(
            bench.master.pool, num_lookup_blocks=3, num_hit_blocks=3
        )
        wait_for(lambda: data(bench)["num_lookups"] == 3)
        assert all(0 <= hit["num_hits"] <= hit["num_lookups"] for hit in data(bench)["hits"])


def test_only_so_many_nodes_are_listed_and_all_are_counted(bench: Bench) -> None:
    bench.master.nodes = [listed(f"node-{number}") for number in range(MAX_NODES + 50)]
    shown = data(bench)
    assert (len(shown["nodes"]), shown["num_nodes"]) == (MAX_NODES, MAX_NODES + 50)


def test_page_can_be_off(tmp_path: Path) -> None:
    decodes = [ScriptedDecode("decode", says("yes"))]
    with running_gateway(tmp_path, decodes, status_page=False) as bench:
        for path in ("/status", "/status/data.json", "/status/page.js"):
            assert bench.http.get(path).status_code == 404
        assert bench.http.get("/metrics").status_code == 200
        assert bench.http.get("/").json()["models"]


def test_page_of_tenants_is_for_whom_metrics_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host is played: the connection's address decides."""
    tenants = tmp_path / "tenants.toml"
    assert main(["tenant", "add", "first", "--file", str(tenants), "--output", "json"]) == 0
    section = TenantsSection(file=str(tenants))
    with running_gateway(tmp_path, [ScriptedDecode("decode", says("yes"))], section) as bench:
        assert bench.http.get("/status").status_code == 200
        monkeypatch.setattr(
            "daemons.mc_gateway.visit.may_read_metrics",
            lambda scope, is_open: may_read_metrics(
                scope | {"client": ("192.0.2.7", 1)}, is_open=is_open
            ),
        )
        for path in ("/status", "/status/data.json", "/status/page.js", "/metrics"):
            reply = bench.http.get(path)
            assert (reply.status_code, "tenants.open_metrics" in reply.text) == (403, True)


def test_no_tenant_and_no_text_is_in_the_data(bench: Bench) -> None:
    bench.post({"model": MODEL, "messages": [{"role": "user", "content": "my secret"}]})
    fill(bench)
    document = json.dumps(data(bench))
    assert "secret" not in document
    assert "tenant" not in document
