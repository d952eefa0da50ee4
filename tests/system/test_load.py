"""mcctl bench load on a real cluster of a tiny model, and what it sends."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from integration.test_gateway import MODEL, ScriptedDecode, running_gateway
from kit.models import make_tiny_model

from daemons.simulation.outcome import Objectives
from daemons.simulation.trace import TraceRequest
from mcctl.bench.load import NUM_WARM_UP, LoadPlan, prediction_errors, request_body
from mcctl.cluster.plan import ClusterOptions
from mcctl.cluster.processes import LocalCluster
from mcctl.main import main
from mcctl.openai_stream import Answer, Mooncake


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    model = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    options = ClusterOptions(model=model, dtype="float32", kv_memory="32MiB", segment="32MiB")
    with LocalCluster.temporary(options) as running:
        yield running


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten requests within half a second; all share one block, each second one a second block."""
    file = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 50 * number,
            "input_length": 1200,
            "output_length": 40,
            "hash_ids": [7, 8 if number % 2 else 100 + number, 200 + number],
        }
        for number in range(10)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


class Bench:
    """mcctl bench load, in this process."""

    def __init__(self, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._where = ["--endpoint-http", cluster.url, "--endpoint", cluster.master]
        self._capsys = capsys

    def load(self, *words: str) -> Any:
        status, out, error = self.say(*words)
        assert status == 0, error
        return json.loads(out)

    def say(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        flags = ["--model", "tiny", "--output", "json", *self._where]
        status = main(["bench", "load", *words, *flags])
        said = self._capsys.readouterr()
        return status, said.out, said.err


@pytest.fixture
def bench(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(cluster, capsys)


def test_trace_is_replayed_and_judged_by_the_objectives(
    bench: Bench, trace: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "load.svg"
    scaled = (str(trace), "--length-scale", "0.125", "--ttft-slo", "60", "--tbt-slo", "60")
    easy = bench.load(*scaled, "--plot", str(plot))
    assert easy["num_requests"] == easy["num_answered"] == 10, easy
    assert easy["goodput"] == 1.0
    assert easy["prompt_tokens"] == 10 * (2 * 64 + 22)
    assert 0 < easy["ttft_s"]["p50"] <= easy["ttft_s"]["p99"]
    assert easy["output_tokens_per_s"] == pytest.approx(10 * 5 / easy["makespan_s"])
    assert len(easy["ttft_percentiles_s"]) == 101
    assert easy["prediction_error"] > 0
    assert easy["warm_prediction_error"] is easy["overload"] is None
    assert "time to first token" in plot.read_text()

    # The same tokens once more: now both whole blocks of each are in the pool.
    hard = bench.load(str(trace), "--length-scale", "0.125", "--ttft-slo", "0.001")
    assert hard["goodput"] == 0.0
    assert hard["reused_fraction"] == pytest.approx(128 / 150)


def test_what_is_due_beyond_the_concurrency_is_left_out_and_what_fails_is_said(
    bench: Bench, trace: Path
) -> None:
    crowd = bench.load(
        str(trace), "--length-scale", "0.125", "--rate", "1000", "--concurrency", "1"
    )
    assert crowd["num_not_sent"] + crowd["num_answered"] == 10
    assert crowd["num_not_sent"] >= 5
    assert crowd["goodput"] <= 0.5
    words = (str(trace), "--length-scale", "5", "--limit", "8", "--rate", "1000", "--overload", "2")
    status, out, error = bench.say(*words)
    assert status == 0
    long = json.loads(out)
    assert (long["num_failed"], long["goodput"]) == (8, 0.0)
    assert "tokens" in long["why_failed"]
    assert (long["overload"]["num_failed"], long["overload"]["goodput_kept"]) == (10, 0.0)
    assert "has 10 requests, not 16: what is too much lasts 62% of the time" in error


def test_made_up_traffic_the_same_for_twice_the_load_and_a_source_that_is_none(
    bench: Bench,
) -> None:
    words = ("chats", "--rate", "20", "--limit", "6", "--length-scale", "0.02")
    easy = ("--ttft-slo", "60", "--tbt-slo", "60", "--peak-steps", "0")
    made = bench.load(*words, "--overload", "2", *easy)
    assert made["num_answered"] == 6
    high = made["overload"]
    assert high["peak_offered_per_s"] == made["offered_per_s"]
    assert high["of_peak_load"] == high["offered_per_s"] / made["offered_per_s"]
    assert high["num_requests"] == high["num_answered"] == 12
    assert high["goodput_kept"] == pytest.approx(high["good_per_s"] / made["good_per_s"])
    assert 0 < high["ttft_p90_of_slo"] == pytest.approx(high["ttft_s"]["p90"] / 60)
    status, _, error = bench.say("no-such.jsonl")
    assert (status, "no-such.jsonl" in error) == (3, True)


def test_equal_blocks_are_equal_tokens_and_the_rest_is_not() -> None:
    requests = [TraceRequest(n, 0.0, 1024 + 100, 10, (1, 2 + n)) for n in range(2)]
    plan = LoadPlan(
        model="m", vocab_size=1000, requests=requests, objectives=Objectives(), length_scale=0.5
    )
    first, second = (request_body(plan, request)["prompt"] for request in requests)
    assert len(first) == len(second) == 512 + 50
    assert first[:256] == second[:256]
    assert first[256:] != second[256:]
    assert first[-50:] != second[-50:]
    assert request_body(plan, requests[0])["prompt"] == first


def test_refused_requests_are_rejected_ones_and_no_failures(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One at a time is answered by this gateway, the others get its 429."""
    decode = ScriptedDecode("decode", lambda _: [40] * 20)
    decode.interval_s = 0.05
    with running_gateway(tmp_path, [decode], max_requests=1) as gateway:
        where = ["--endpoint-http", gateway.url, "--endpoint", gateway.master.endpoint]
        words = [str(trace), "--length-scale", "0.125", "--model", MODEL, "--rate", "5"]
        # Objectives that every answer meets, however slow this machine is.
        words += ["--ttft-slo", "60", "--tbt-slo", "60"]
        assert main(["bench", "load", *words, *where, "--output", "json"]) == 0
        result = json.loads(capsys.readouterr().out)
    assert result["num_answered"] >= 1
    assert result["num_rejected"] >= 5
    assert result["num_answered"] + result["num_rejected"] == 10
    assert result["goodput"] == result["num_answered"] / 10


def test_how_far_predictions_are_off_is_told_with_and_without_the_first_answers() -> None:
    def answer(predicted_s: float) -> Answer:
        mooncake = Mooncake(predicted_ttft_s=predicted_s)
        return Answer(text="x", piece_times_s=[1.0], mooncake=mooncake)

    cold, warm = [answer(3.0)] * NUM_WARM_UP, [answer(0.9), answer(0.8), answer(1.3)]
    assert median(prediction_errors([*cold, *warm])) == pytest.approx(2.0)
    assert median(prediction_errors([*cold, *warm][NUM_WARM_UP:])) == pytest.approx(0.2)
    assert prediction_errors([answer(0.0)]) == []
