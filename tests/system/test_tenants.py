"""A whole cluster with keys on, and tenants at its gateway: a chat answer, whose cache hits are whose, and a node whose
key is revoked while it serves.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from kit.daemon import wait_for
from kit.models import make_tiny_model

from daemons.config.key_files import read_key_file
from mcctl.cluster.plan import ClusterOptions, ClusterPlan, plan_cluster, to_toml
from mcctl.main import main

PROMPT = "Tell me about the lighthouse on the rock, its keeper, and the storm of that winter. " * 8


class Cluster:
    """One daemon of each kind, each with its own key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.keys_run("generate", "op", "--role", "admin", "--authorize")
        self.plan = self._plan()
        for daemon in self.plan.daemons:
            self.keys_run("generate", daemon.node_id, "--role", daemon.role, "--authorize")
        self.master_key = read_key_file(folder / "keys" / "master.pub").public
        self.tenants = folder / "tenants.toml"
        self.api_keys = {name: self._tenant(name) for name in ("acme", "umbrella")}

    def _plan(self) -> ClusterPlan:
        model = make_tiny_model(self.folder / "tiny", "llama")
        options = ClusterOptions(
            model=model,
            dtype="float32",
            kv_memory="32MiB",
            segment="64MiB",
            segment_directory=self.folder,
            overrides={"master": {"conductor": {"policy": "cache-aware"}}},
        )
        return plan_cluster(options, self.folder, (self.folder, self.folder))

    def _tenant(self, name: str) -> str:
        self.mcctl_here("tenant", "add", name, "--file", str(self.tenants))
        out = self.mcctl_here("tenant", "key", name, "--file", str(self.tenants), "-o", "json")
        return str(json.loads(out)["key"])

    def mcctl_here(self, *words: str) -> str:
        command = [sys.executable, "-m", "mcctl", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    def keys_run(self, *words: str) -> None:
        assert main(["keys", *words, "--directory", str(self.folder), "--output", "plain"]) == 0

    def start(self) -> None:
        for daemon in self.plan.daemons:
            tables: Any = daemon.tables
            key = str(self.folder / "keys" / f"{daemon.node_id}.key")
            if daemon.role == "master":
                listed = str(self.folder / "authorized.toml")
                tables["security"] = {"key_file": key, "authorized_file": listed}
            else:
                tables["security"] = {"key_file": key, "master_key": self.master_key}
            if daemon.role == "gateway":
                tables["tenants"] = {"file": str(self.tenants)}
            path = self.folder / f"{daemon.name}.toml"
            path.write_text(to_toml(tables))
            with (self.folder / f"{daemon.name}.log").open("wb") as log:
                self.processes[daemon.role] = subprocess.Popen(
                    [sys.executable, "-m", f"daemons.mc_{daemon.role}", "--config", str(path)],
                    stderr=log,
                    env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
                )

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.kill()
            process.wait(30)

    def ask(self, tenant: str, prompt: str = PROMPT) -> httpx.Response:
        return httpx.post(
            f"{self.plan.url}/v1/chat/completions",
            json={
                "model": "tiny",
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": 4,
                "temperature": 0,
            },
            headers={"authorization": f"Bearer {self.api_keys[tenant]}"},
            timeout=60,
            trust_env=False,
        )

    def mcctl(self, *words: str) -> Any:
        shown = ["--key-file", str(self.folder / "keys" / "op.key"), "--master-key"]
        more = ["--endpoint", self.plan.master, "-o", "json", *shown, self.master_key]
        return json.loads(self.mcctl_here(*words, *more))

    def roles(self) -> set[str]:
        return {node["node"]["role"] for node in self.mcctl("node", "list")["nodes"]}

    def num_blocks(self) -> int:
        return len(self.mcctl("cache", "list")["blocks"])


def cached(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("secured"))
    try:
        made.start()
        wait_for(lambda: is_healthy(made), 120)
        wait_for(lambda: {"prefill", "decode", "cachenode"} <= made.roles(), 120)
        yield made
    finally:
        made.stop()


def is_healthy(cluster: Cluster) -> bool:
    try:
        return httpx.get(f"{cluster.plan.url}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_tenant_reuses_its_own_blocks_and_no_others(cluster: Cluster) -> None:
    first = cluster.ask("acme")
    assert cached(first) == 0
    num_blocks = 5
    wait_for(lambda: cluster.num_blocks() >= num_blocks)
    assert cached(cluster.ask("acme")) >= 64 * num_blocks, "through decode, prefill and cache node"
    other = cluster.ask("umbrella")
    assert cached(other) == 0
    answers = {answer.json()["choices"][0]["message"]["content"] for answer in (first, other)}
    assert len(answers) == 1, "the same model"
    wait_for(lambda: cluster.num_blocks() >= 2 * num_blocks)
    assert cached(cluster.ask("umbrella")) >= 64 * num_blocks


def test_nobody_was_refused_in_a_cluster_whose_keys_are_right(cluster: Cluster) -> None:
    for log in cluster.folder.glob("*.log"):
        assert "refused" not in log.read_text(), log.name


def test_a_decode_node_whose_key_is_revoked_serves_nobody(cluster: Cluster) -> None:
    cluster.keys_run("revoke", "decode", "--yes")
    wait_for(lambda: cluster.ask("acme").status_code == 503, 15)
    assert "decode" not in cluster.roles()
    cluster.keys_run("authorize", str(cluster.folder / "keys" / "decode.pub"))
    wait_for(lambda: cluster.ask("acme").status_code == 200, 15)
