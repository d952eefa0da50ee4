"""mcctl cluster and its neighbours with real processes and a tiny model: up, used, down, and nothing is left."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.daemon import SLACK
from kit.models import make_tiny_model
from kit.paced import write_profile

from mcctl.cluster.plan import ClusterOptions
from mcctl.cluster.process_identity import identify
from mcctl.cluster.processes import LocalCluster

SMALL = ["--dtype", "float32", "--kv-memory", "16MiB", "--segment", "32MiB"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What to be paced by, where a test is about processes and not about what they compute: half the time to start."""
    return str(write_profile(tmp_path_factory.mktemp("profiles") / "fast.toml"))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of an operator of their own; whatever a failed test left running is ended."""
    # A UNIX socket's path must be short.
    runtime = tempfile.mkdtemp(prefix="mc-")
    environment = os.environ | {
        "XDG_RUNTIME_DIR": runtime,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    yield environment
    subprocess.run([sys.executable, "-m", "mcctl", "cluster", "down"], env=environment, check=False)
    shutil.rmtree(runtime)


def mcctl(home: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mcctl", *arguments],
        env=home,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


def answer(home: dict[str, str], *arguments: str) -> Any:
    done = mcctl(home, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _exists(pid: int) -> bool:
    """A zombie whose new parent has not waited for it yet is gone."""
    process = identify(pid)
    return process is not None and process.is_alive


def _left(home: dict[str, str]) -> list[Path]:
    """What clusters of this operator left outside their own directory: each has its sockets there."""
    return list((Path(home["XDG_RUNTIME_DIR"]) / "mooncake").glob("*"))


def test_cluster_is_used_and_leaves_nothing(
    model: Path, home: dict[str, str], tmp_path: Path
) -> None:
    up = answer(home, "cluster", "up", "--model", str(model), "--prefill", "2", *SMALL)
    assert up["is_healthy"]
    pids = {daemon["name"]: daemon["pid"] for daemon in up["daemons"]}
    assert set(pids) == {
        "mc-master",
        "mc-cachenode",
        "mc-prefill",
        "mc-prefill-2",
        "mc-decode",
        "mc-gateway",
    }

    record = tmp_path / "state" / "mooncake" / "cluster" / "cluster.json"
    scratch = json.loads(record.read_text())["scratch"]
    assert all(Path(path).is_dir() for path in scratch)

    text = "keep the light burning " * 12
    sent = [
        answer(home, "request", "send", "--prompt", text, "--max-tokens", "5") for _ in range(2)
    ]
    assert sent[0]["answer"] == sent[1]["answer"]
    assert sent[0]["reused_tokens"] == 0
    assert sent[1]["reused_tokens"] >= 64

    assert answer(home, "status")["is_serving"]
    seen = mcctl(
        home, "top", "--count", "2", "--interval", "0.1", "--output", "json"
    ).stdout.splitlines()
    frames = [json.loads(line) for line in seen]
    assert [
        {line["role"] for line in frame["nodes"]} >= {"prefill", "decode"} for frame in frames
    ] == [True] * 2
    nodes = answer(home, "node", "list")["nodes"]
    unknown = mcctl(home, "cache", "list", "--node", "nobody")
    assert (unknown.returncode, "no node nobody" in unknown.stderr) == (3, True)
    assert sorted(node["node"]["role"] for node in nodes) == [
        "cachenode",
        "decode",
        "gateway",
        "prefill",
        "prefill",
    ]
    assert len(answer(home, "topology", "show")["hosts"]) == 1
    assert len(answer(home, "request", "list")["requests"]) == 2

    blocks = answer(home, "cache", "list")["blocks"]
    in_pool = [block for block in blocks if "dram" in block["tiers"]]
    assert answer(home, "cache", "stat")["num_blocks"] == len(in_pool) > 0
    digits = in_pool[0]["meta"]["hash"]
    assert answer(home, "cache", "show", digits)["replicas"][0]["node"] == "cachenode"
    located = answer(home, "cache", "locate", "--prompt", text, "--model-path", str(model))
    assert located["matched_tokens"] >= 64
    places = {at["tier"]: at["node"] for at in located["blocks"][0]["replicas"]}
    assert places["dram"] == "cachenode"
    assert places["device"].startswith("prefill")

    assert mcctl(home, "cache", "clear").returncode == 5
    assert answer(home, "cache", "clear", "--yes")["num_cleared"] == len(blocks)
    assert answer(home, "cache", "stat")["num_blocks"] == 0

    again = mcctl(home, "cluster", "up", "--model", str(model), *SMALL)
    assert again.returncode == 4
    assert "mcctl cluster down" in again.stderr

    assert answer(home, "cluster", "down") == {"was_running": True, "killed": [], "kept": None}
    assert not any(_exists(pid) for pid in pids.values())
    assert not any(Path(path).exists() for path in scratch)
    assert not (tmp_path / "state" / "mooncake" / "cluster").exists()
    assert not _left(home)
    assert mcctl(home, "cluster", "status").returncode == 7
    assert answer(home, "cluster", "down") == {"was_running": False, "killed": [], "kept": None}


def test_one_daemon_is_started_again_and_down_ends_those_that_hang_or_died(
    model: Path, home: dict[str, str], fast: str
) -> None:
    up = answer(home, "cluster", "up", "--model", str(model), "--paced", fast, *SMALL)
    first = {daemon["name"]: daemon["pid"] for daemon in up["daemons"]}
    os.kill(first["mc-cachenode"], signal.SIGKILL)
    deadline_s = time.monotonic() + 20
    while (told := mcctl(home, "cluster", "status")).returncode != 7:
        assert time.monotonic() < deadline_s, told.stdout
    assert "(serves" in told.stdout, "prompts are computed"
    assert "mc-cachenode ended" in told.stdout
    assert "mcctl cluster restart mc-cachenode" in told.stdout
    os.kill(first["mc-master"], signal.SIGKILL)
    deadline_s = time.monotonic() + 20
    while _exists(first["mc-master"]):
        assert time.monotonic() < deadline_s, "it was killed"
    again = answer(home, "cluster", "restart")
    pids = {daemon["name"]: daemon["pid"] for daemon in again["daemons"]}
    assert {name for name in pids if pids[name] != first[name]} == {"mc-cachenode", "mc-master"}
    assert (again["is_healthy"], again["why"]) == (True, "")
    assert mcctl(home, "cluster", "restart", "nobody").returncode == 3
    os.kill(pids["mc-decode"], signal.SIGKILL)
    os.kill(pids["mc-cachenode"], signal.SIGSTOP)
    deadline_s = time.monotonic() + 20
    while (told := mcctl(home, "cluster", "status")).returncode != 7:
        assert time.monotonic() < deadline_s, told.stdout
    assert "does NOT serve" in told.stdout
    seen: dict[str, Any] = {}
    deadline_s = time.monotonic() + 40
    while not {each["what"] for each in seen.get("reasons", ())} >= {"tiny", "decode", "cachenode"}:
        assert time.monotonic() < deadline_s, seen
        seen = json.loads(mcctl(home, "status", "--output", "json").stdout)
    assert (seen["health"], seen["is_serving"]) == ("down", False)
    assert all(each["since_s"] > 0 and "mcctl logs" in each["next"] for each in seen["reasons"])
    os.kill(pids["mc-master"], signal.SIGKILL)
    deadline_s = time.monotonic() + 20
    while _exists(pids["mc-master"]):
        assert time.monotonic() < deadline_s, "it was killed"
    alone = mcctl(home, "cluster", "restart", "decode")
    assert alone.returncode == 7, "nothing waits for a master that nobody starts"
    assert "`mcctl cluster restart mc-master mc-decode`" in alone.stderr
    down = answer(home, "cluster", "down", "--grace", "3")
    assert down["was_running"]
    assert not any(_exists(pid) for pid in pids.values())


def test_record_from_before_a_reboot_is_no_cluster(
    model: Path, home: dict[str, str], tmp_path: Path, fast: str
) -> None:
    answer(home, "cluster", "up", "--model", str(model), "--paced", fast, *SMALL)
    path = tmp_path / "state" / "mooncake" / "cluster" / "cluster.json"
    text = path.read_text()
    answer(home, "cluster", "down")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert mcctl(home, "cluster", "status").returncode == 7
    assert mcctl(home, "status", "--timeout", "0.2").returncode == 7
    assert answer(home, "cluster", "down") == {"was_running": False, "killed": [], "kept": None}
    assert not path.parent.exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_temporary_cluster_ends_with_its_command(
    signum: signal.Signals, model: Path, home: dict[str, str], fast: str
) -> None:
    """Killed outright, it is one of real engines: what they load and start must not keep them."""
    paced = None if signum == signal.SIGKILL else fast
    code = (
        "import sys, pathlib, time\n"
        "from mcctl.cluster.plan import ClusterOptions\n"
        "from mcctl.cluster.processes import LocalCluster\n"
        f"o = ClusterOptions(model=pathlib.Path(sys.argv[1]), paced={paced!r}, kv_memory='16MiB', segment='32MiB')\n"
        "with LocalCluster.temporary(o) as c:\n"
        "    print(*c.pids.values(), flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(model)], stdout=subprocess.PIPE, text=True, env=home
    ) as command:
        assert command.stdout is not None
        pids = [int(pid) for pid in command.stdout.readline().split()]
        assert len(pids) == 5
        command.send_signal(signum)
        for _ in range(3):  # one who cannot wait leaves nothing behind either
            time.sleep(0.1)
            command.send_signal(signum)
        command.wait(timeout=30 * SLACK)
    if signum != signal.SIGKILL:
        assert not _left(home)
    deadline_s = time.monotonic() + 5
    while any(_exists(pid) for pid in pids) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(_exists(pid) for pid in pids)
    mcctl(home, "cluster", "down")  # SIGKILL lets nobody tidy up; the next command does
    assert not _left(home)


def test_restarted_daemon_joins_again(model: Path) -> None:
    options = ClusterOptions(model=model, dtype="float32", kv_memory="16MiB", segment="32MiB")
    with LocalCluster.temporary(options) as cluster:
        old = cluster.pids["mc-decode"]
        cluster.kill("mc-decode")
        with pytest.raises(ProcessLookupError):
            cluster.kill("mc-decode", signal.SIGCONT)
        cluster.restart("mc-decode")
        cluster.wait_ready(timeout_s=30)
        assert cluster.pids["mc-decode"] != old


class TestBadInput:
    """One line that says what, where and the next step; the exit code of its family."""

    def _refused(self, home: dict[str, str], code: int, *arguments: str) -> str:
        done = mcctl(home, *arguments)
        assert done.returncode == code, done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("mcctl: ")]
        assert len(said) == 1
        assert "Traceback" not in done.stderr
        return said[0]

    def test_wrong_model_directory(self, home: dict[str, str], tmp_path: Path) -> None:
        said = self._refused(home, 78, "cluster", "up", "--model", str(tmp_path))
        assert "is no model" in said

    def test_unknown_model_name(self, home: dict[str, str]) -> None:
        assert "model list" in self._refused(home, 3, "cluster", "up", "--model", "nothing")

    def test_model_that_the_daemon_refuses(self, home: dict[str, str], tmp_path: Path) -> None:
        for name in ("config.json", "tokenizer.json"):
            (tmp_path / name).write_text("{}")
        said = self._refused(home, 78, "cluster", "up", "--model", str(tmp_path), *SMALL)
        assert str(tmp_path) in said
        assert not _left(home)

    def test_port_in_use(self, model: Path, home: dict[str, str]) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            said = self._refused(
                home, 78, "cluster", "up", "--model", str(model), "--port", port, *SMALL
            )
        assert port in said

    def test_segment_larger_than_memory(self, model: Path, home: dict[str, str]) -> None:
        said = self._refused(home, 6, "cluster", "up", "--model", str(model), "--segment", "99TiB")
        assert "--segment" in said

    def test_size_that_is_none(self, model: Path, home: dict[str, str]) -> None:
        self._refused(home, 2, "cluster", "up", "--model", str(model), "--kv-memory", "lots")

    def test_dtype_that_is_none(self, model: Path, home: dict[str, str]) -> None:
        self._refused(home, 2, "cluster", "up", "--model", str(model), "--dtype", "int4")
        assert not _left(home)

    @pytest.mark.parametrize("role", ["master", "cachenode", "prefill", "decode", "gateway"])
    def test_daemon_refuses_an_unknown_key(self, role: str, tmp_path: Path) -> None:
        path = tmp_path / f"mc-{role}.toml"
        path.write_text("[node]\nlisten_on = 3\n")
        done = subprocess.run(
            [sys.executable, "-m", f"daemons.mc_{role}", "--config", str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 78
        assert len(done.stderr.splitlines()) == 1
        assert str(path) in done.stderr
