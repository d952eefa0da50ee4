"""mcctl simulate, as typed."""

import json
import re
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import pytest

from daemons.simulation.hardware import DEFAULT
from mcctl.main import main


def mcctl(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["simulate", *arguments])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Six prompts with the same first block, two seconds apart."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 2000 * n,
            "input_length": 1500,
            "output_length": 20,
            "hash_ids": [0, n + 1, n + 9],
        }
        for n in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_run_compares_policies_and_baselines(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    status, out, _ = mcctl(
        capsys, "run", str(trace), "--policy", "all", "--coupled", "--prefill", "2", "--output", "json"
    )  # fmt: skip
    runs = json.loads(out)["runs"]
    assert status == 0
    assert {run["policy"] for run in runs} >= {"time", "lmetric", "random", "chunked"}
    assert all(run["num_requests"] == 6 and run["goodput"] == 1.0 for run in runs)


def test_plan_shows_what_a_cache_finds(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    status, out, err = mcctl(capsys, "plan", str(trace), "--nodes", "3")
    assert status == 0
    assert f"{5 * 512 / 9000:.1%}" in out
    assert "1P+2D" in out
    assert err.count("Conclude") == 0
    assert out.count("Conclude") == 3
    assert "is a cache worth it?" in out
    assert "how much memory?" in out
    assert "all in DRAM" in out
    told = re.findall(r"^\[ *[0-9.]+ s\] (.*)", err, re.MULTILINE)
    assert "1P+2D with all in DRAM" in told
    assert len(told) == len(set(told)), "no line of its progress twice"
    status, out, _ = mcctl(capsys, "plan", str(trace), "--nodes", "3", "--output", "json")
    found = json.loads(out)
    assert found["best_cluster"] in {run["cluster"] for run in found["clusters"]}
    assert found["best_memory"] in {choice["name"] for choice in found["memory"]}
    assert found["max_requests_per_s"] == max(rate["requests_per_s"] for rate in found["rates"])


def test_each_eviction_policy_is_replayed_and_drawn(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    status, out, _ = mcctl(capsys, "run", str(trace), "--eviction", "all", "--output", "json")
    assert status == 0
    assert [run["eviction"] for run in json.loads(out)["runs"]] == ["lru", "lfu", "depth"]
    picture = tmp_path / "plan.svg"
    status, out, _ = mcctl(
        capsys, "plan", str(trace), "--eviction", "lfu", "--eviction", "lru", "--plot", str(picture),
        "--output", "json",
    )  # fmt: skip
    curve = json.loads(out)["hit_curve"]
    assert status == 0
    half = len(curve) // 2
    assert [point["eviction"] for point in curve] == ["lfu"] * half + ["lru"] * half
    capacities = [point["capacity_tokens"] for point in curve[:half]]
    assert capacities[:-1] == sorted(set(capacities[:-1]))
    assert capacities[-1] == 0, "the cache without end"
    # The largest round size has room for all there is.
    assert {point["hit_fraction"] for point in curve[half - 2 : half]} == {5 * 512 / 9000}
    lines = ElementTree.parse(picture).getroot().findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 3


def test_lower_tiers_are_shown_beside_the_runs(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    sizes = ("--dram-tokens", "2048", "--ssd-tokens", "512000")
    status, out, _ = mcctl(capsys, "run", str(trace), *sizes)
    assert status == 0
    assert "where reused prompt tokens came from" in out
    assert "ssd" in out
    status, out, _ = mcctl(capsys, "run", str(trace), *sizes, "--output", "json")
    (run,) = json.loads(out)["runs"]
    assert [tier["tier"] for tier in run["tiers"]] == ["dram", "ssd"]


def test_no_times_are_made_up_where_everybody_was_rejected(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    profile = tmp_path / "small.toml"
    packaged = resources.files("daemons.simulation") / "hardware_profiles" / f"{DEFAULT}.toml"
    profile.write_text(re.sub("device_tokens = .*", "device_tokens = 1000", packaged.read_text()))
    _, out, _ = mcctl(capsys, "run", str(trace), "--hardware", str(profile), "--output", "plain")
    assert out.split("\t")[2:6] == ["0.0%", "6", "-", "-"]


def test_each_admission_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--admission", "none", "--admission", "objectives", "--ttft-slo", "5"]
    shape = ["--prefill", "1", "--decode", "1", "--rate", "4", "--limit", "60"]
    status, out, _ = mcctl(capsys, "run", "unrelated", *asked, *shape, "--output", "json")
    assert status == 0
    runs = {run["admission"]: run for run in json.loads(out)["runs"]}
    assert runs["none"]["num_rejected"] == 0 < runs["objectives"]["num_rejected"]
    assert runs["objectives"]["ttft_s"]["p99"] < 5.1 < runs["none"]["ttft_s"]["p99"]
    assert mcctl(capsys, "run", "unrelated", "--admission", "maybe")[0] == 2


def test_plots_are_drawn(capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path) -> None:
    # At other rates than its own a trace is only drawn where that says something.
    for verb, charts, slo in (("run", 5, "30"), ("plan", 2, "30"), ("plan", 3, "0.001")):
        picture = tmp_path / f"{verb}.svg"
        status, _, _ = mcctl(capsys, verb, str(trace), "--ttft-slo", slo, "--plot", str(picture))
        assert status == 0
        image = ElementTree.parse(picture).getroot()
        lines = image.findall(".//{http://www.w3.org/2000/svg}polyline")
        assert len(lines) == charts
        assert all(len((line.get("points") or "").split()) > 1 for line in lines)


def test_a_plot_that_cannot_be_written_is_refused_first(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    status, out, err = mcctl(capsys, "run", str(trace), "--plot", "/no/such/place.svg")
    assert (status, out) == (78, "")
    assert "no directory" in err


def test_reproduce_fails_on_a_trace_that_is_not_the_published_one(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    status, out, err = mcctl(capsys, "reproduce", str(trace), "--figure", "hit-rate")
    assert status == 1
    assert "OUT" in out
    assert "out of tolerance" in err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["run", "/no/such/trace"], 3, "/no/such/trace"),
        (["run", "chat"], 3, "made-up traffic: documents, chats"),
        (["run", "chats", "--policy", "fastest"], 2, "fastest"),
        (["run", "chats", "--eviction", "newest"], 2, "newest"),
        (["run", "chats", "--hardware", "abacus"], 78, "abacus"),
        (["run", "chats", "--rate", "0"], 2, "rate"),
        (["plan", "chats", "--nodes", "1"], 2, "nodes"),
        (["reproduce", "x", "--figure", "nine"], 2, "nine"),
    ],
)
def test_bad_arguments_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    ended, _, err = mcctl(capsys, *arguments)
    assert ended == status
    assert said in err


@pytest.mark.parametrize(
    "arguments", [("run", "--prefill"), ("run", "--decode"), ("plan", "--nodes")]
)
def test_more_nodes_than_can_be_looked_at_are_refused(
    capsys: pytest.CaptureFixture[str], trace: Path, arguments: tuple[str, str]
) -> None:
    verb, option = arguments
    status, _, said = mcctl(capsys, verb, str(trace), option, "1000000000")
    assert status == 2
    assert option in said
