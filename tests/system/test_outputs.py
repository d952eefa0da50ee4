"""On a real cluster: verbs print as JSON what their schemas say, and daemons export what the dashboard asks for."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from kit.json_schema import problems
from kit.models import make_tiny_model
from kit.served import served
from shipped.dashboard import read_queries
from shipped.output_page import all_verbs

from daemons.client.cluster import ClusterClient
from mcctl.bench.served_model import described_model, kv_sizes
from mcctl.cluster.plan import ClusterOptions
from mcctl.cluster.processes import LocalCluster
from mcctl.main import main
from mcctl.output_schema import schema_of

pytestmark = pytest.mark.timeout(180)

ELSEWHERE = {
    "quickstart",
    "cluster up",
    "cluster down",
    "cluster restart",  # tests/system/test_cluster.py
    "bench serve",
    "bench conductor",
    "bench ssd",
    "bench store",
    "bench load",
    "bench master",
    "bench recover",
    "bench transfer",
    "model fetch",
    "model convert",
    "simulate reproduce",
    "logs",
    "service list",
    "service start",
    "service stop",
    "service restart",
    "service logs",
    "node remove",
    "cache move",
    "cache replicate",
    "wait drained",
}
"""Run by tests of their own: they take long, need a systemd, or several nodes."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def cluster(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = ClusterOptions(
        model=model,
        kv_memory="64MiB",
        segment="64MiB",
        ssd_directory=tmp_path_factory.mktemp("ssd"),
        ssd_capacity="512MiB",
        dtype="float32",
    )
    with LocalCluster.temporary(options) as running:
        yield running


class Prints:
    """Runs a verb and holds what it prints against its schema."""

    def __init__(self, capsys: pytest.CaptureFixture[str], endpoint: str) -> None:
        self._capsys = capsys
        self._endpoint = endpoint
        self._printed = dict(all_verbs())
        self.seen: set[str] = set()

    def __call__(self, verb: str, *arguments: str, ends: int = 0) -> Any:
        printed = self._printed[verb]
        assert printed is not None
        words = [*verb.split(), *arguments, "--endpoint", self._endpoint, "-o", "json"]
        assert main(words) == ends, self._capsys.readouterr().err
        out = self._capsys.readouterr().out
        lines = out.splitlines() if printed.is_stream else [out]
        assert lines
        schema = schema_of(printed, verb)
        values = [json.loads(line) for line in lines]
        for value in values:
            assert not problems(value, schema, schema), verb
        self.seen.add(verb)
        return values if printed.is_stream else values[0]

    def rows_in_80_columns(self, verb: str, *arguments: str) -> list[str]:
        """The lines of its table in a narrow terminal."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "80")
            assert main([*verb.split(), *arguments, "--endpoint", self._endpoint]) == 0
        lines = self._capsys.readouterr().out.splitlines()
        assert all(len(line) <= 80 for line in lines)
        _, *rows = itertools.dropwhile(lambda line: "\u2500" not in line, lines)
        return list(itertools.takewhile(str.strip, rows))


def of_nothing(capsys: pytest.CaptureFixture[str], cluster: LocalCluster) -> None:
    """Before the first request there is no figure, not one that is zero."""
    for words in (["status"], ["top", "--count", "1"], ["cache", "stat"]):
        assert main([*words, "--endpoint", cluster.master, "--output", "plain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"TTFT\t-", "reused\t-", "hits\t-"} <= set(lines)
    assert any(line.endswith("nothing asked for yet") for line in lines)
    assert "look-ups\t0, 0 of 0 blocks found" in lines


def of_requests(prints: Prints, cluster: LocalCluster, model: Path) -> None:
    text = "keep the light burning " * 12
    for drafts in ((), ("--no-drafts",)):
        prints("request send", "--prompt", text, "--max-tokens", "3", "--url", cluster.url, *drafts)
    (request, *_) = prints("request list")["requests"]
    explained = prints("request explain", request["request_id"])["request"]
    assert (explained["num_decode_steps"], explained["num_drafted_tokens"]) == (2, 0)
    assert prints("request show", request["request_id"][:8])["prefill"] == "prefill"
    located = prints("cache locate", "--prompt", text, "--model-path", str(model))
    assert located["matched_tokens"] >= 64
    rows = prints.rows_in_80_columns("cache locate", "--prompt", text, "--model-path", str(model))
    assert len(rows) == len(located["blocks"])
    for row, block in zip(rows, located["blocks"], strict=True):
        assert block["hash"][:8] in row
        assert not block["replicas"] or "cachenode" in row


def of_the_cluster(prints: Prints, cluster: LocalCluster) -> None:
    assert prints("status")["is_serving"]
    prints("wait ready", "--nodes", "4")
    prints("node list")
    prints("node costs")
    assert prints("node show", "cachenode")["node"]["role"] == "cachenode"
    assert main(["node", "remove", "cachenode", "--endpoint", cluster.master]) == 4, "it lives"
    prints("topology show")
    prints("topology probe")
    prints("top", "--count", "2", "--interval", "0.1")
    events = prints("events", "--events", cluster.record.events, "--last", "100")
    assert {event["event"] for event in events} >= {"NodeJoined", "BlockStored"}
    prints("doctor", "--no-cluster", str(cluster.config_path("mc-master")))
    prints("cluster status", ends=7)


def of_blocks(prints: Prints) -> None:
    listed = [block["meta"]["hash"] for block in prints("cache list")["blocks"]]
    rows = prints.rows_in_80_columns("cache list")
    hashes = [row.split()[0] for row in rows]
    assert set(hashes) >= set(listed), "a line a block, its hash in one piece"
    assert all(len(each) == 32 for each in hashes)
    block = listed[0]
    prints("cache show", block)
    prints("cache stat")
    prints("cache flush", "--wait")
    prints("cache pin", block)
    prints("cache unpin", block)
    prints("node drain", "cachenode")
    prints("node undrain", "cachenode")
    prints("segment add", "--node", "cachenode", "--bytes", "16MiB")
    added = prints("segment list")["segments"][-1]["segment"]["number"]
    prints("segment remove", str(added), "--node", "cachenode", "--yes")
    prints("cache clear", "--yes")


def of_objects(prints: Prints, directory: Path) -> None:
    value, archive = directory / "value", str(directory / "objects.tar")
    value.write_bytes(b"seven" * 1000)
    prints("cache put", "w", str(value), "--namespace", "a")
    prints("cache get", "w", "--out", str(directory / "out"), "--namespace", "a")
    prints("cache list", "--namespace", "a")
    prints("cache stat", "w", "--namespace", "a")
    prints("cache export", archive, "--namespace", "a")
    prints("cache import", archive, "--namespace", "b")
    prints("cache rm", "w", "--yes", "--namespace", "a")
    assert (directory / "out").read_bytes() == value.read_bytes()


def of_files(prints: Prints, directory: Path, cluster: LocalCluster) -> None:
    keys, tenants = directory / "keys", str(directory / "tenants.toml")
    key = ["--directory", str(keys)]
    made = prints("keys generate", "cachenode-9", "--role", "cachenode", *key)
    prints("keys authorize", made["public_file"], *key)
    prints("keys list", *key)
    prints("keys rotate", "cachenode-9", *key)
    prints("keys revoke", "cachenode-9", "--yes", *key)
    prints("tenant add", "acme", "--file", tenants)
    prints("tenant list", "--file", tenants)
    prints("tenant quota", "acme", "--requests-per-minute", "5", "--file", tenants)
    prints("tenant key", "acme", "--file", tenants)
    prints("tenant price", "tiny", "--prompt", "0.2", "--file", tenants)
    used = directory / "usage"
    used.mkdir()
    prints("tenant usage", "--usage-dir", str(used), "--file", tenants)
    prints("config check", str(cluster.config_path("mc-master")))
    prints("config show", "mc-master")
    prints("config show", str(cluster.config_path("mc-master")))
    prints("model list")
    prints("topology discover")
    prints("topology check")
    prints("simulate run", "chats", "--limit", "20")
    prints("simulate plan", "chats", "--limit", "20", "--nodes", "2")
    prints("simulate compare", "--requests", "10", "--prefill", "2", "--decode", "2")
    sizes = kv_sizes(cluster.master, described_model(cluster.master, "tiny"))
    assert sizes is not None
    assert (sizes.num_layers, sizes.bytes_per_token) == (3, 768)
    (directory / "serve.json").write_bytes(msgspec.json.encode(served(kv=sizes)))
    prints("simulate fit", str(directory / "serve.json"))


def test_every_verb_prints_what_its_schema_says(
    cluster: LocalCluster,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prints = Prints(capsys, cluster.master)
    of_nothing(capsys, cluster)
    of_requests(prints, cluster, model)
    of_the_cluster(prints, cluster)
    of_blocks(prints)
    of_objects(prints, tmp_path)
    of_files(prints, tmp_path, cluster)
    not_run = set(dict(all_verbs())) - prints.seen - ELSEWHERE
    assert not not_run, "run it here, or say under ELSEWHERE that it is run by a test of its own"


@pytest.mark.parametrize(
    "verb",
    ["status", "node list", "topology show", "cache stat", "request list", "topology discover"],
)
def test_plain_is_lines_of_fields_between_tabs(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert main([*verb.split(), "--endpoint", cluster.master, "-o", "plain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines or verb == "topology discover"
    assert all("\t" in line for line in lines)
    assert not any(mark in line for line in lines for mark in ("\u2500", "\x1b"))


def test_daemons_export_every_metric_of_the_dashboard(
    cluster: LocalCluster, checkout: Path
) -> None:
    with ClusterClient(cluster.master) as client:
        reply = client.nodes()
    described = [reply.master, *(listed.node for listed in reply.nodes)]
    urls = [f"http://{node.metrics}/metrics" for node in described if node.metrics]
    families: set[str] = set()
    for url in {*urls, f"{cluster.url}/metrics"}:
        page = httpx.get(url).text
        families |= {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
    for query in read_queries(checkout):
        for name in query.metrics:
            assert {name, name.removesuffix("_bucket")} & families, query
