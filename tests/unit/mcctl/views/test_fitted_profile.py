"""What bench serve measured becomes a profile that the simulator reads, and that takes the same times."""

from pathlib import Path

import msgspec
import pytest
from kit.served import FIXED_S, TOKEN_S, serve_row, served

from daemons.core.errors import ConfigError
from daemons.simulation.disaggregated import DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, KvSizes, find_profile, parse_profile
from daemons.simulation.outcome import Objectives
from daemons.simulation.simulate import simulate
from daemons.simulation.trace import TraceRequest
from mcctl.bench.serve_result import ServeResult
from mcctl.main import main
from mcctl.views.fitted_profile import FitResult, fitted, profile_text


def fit(*runs: ServeResult, with_drafts: bool = False) -> FitResult:
    base = find_profile(DEFAULT)
    return fitted(runs, base, base_name=DEFAULT, with_drafts=with_drafts)


def test_the_simulator_takes_the_measured_time_with_the_profile() -> None:
    result = fit(served())
    profile = parse_profile(profile_text(result), "fitted")
    assert result.most_off < 1e-3
    for length in (320, 832, 1600):
        prompt = TraceRequest(0, 0.0, length, 5, tuple(range(length // 512)))
        run = simulate([prompt], DisaggregatedPlan(1, 1), profile, Objectives())
        assert run.ttft_s.mean == pytest.approx(FIXED_S + TOKEN_S * length, rel=1e-3)
        assert run.tbt_s.mean == pytest.approx(1 / 4.0, rel=1e-3)


def test_sizes_and_the_rate_of_loads_are_the_clusters() -> None:
    profile = fit(served()).profile
    assert profile.kv == KvSizes(1000, 3, 5000, 7000)
    assert profile.bandwidth.load == pytest.approx(768 * 1000 / 0.002)
    assert profile.bandwidth.network == find_profile(DEFAULT).bandwidth.network


def test_what_was_not_measured_is_said_to_be_of_the_base() -> None:
    kv = KvSizes(bytes_per_token=1000, num_layers=3, device_tokens=0, dram_tokens=7000)
    result = fit(served(kv=kv, rows=[serve_row(256, 64), serve_row(768, 64), serve_row(1536, 64)]))
    named = ["bandwidth.network", "ssd", "object", "bandwidth.load", "kv.device_tokens"]
    assert result.of_base == named
    base = find_profile(DEFAULT)
    assert result.profile.kv.device_tokens == base.kv.device_tokens
    assert result.profile.bandwidth == base.bandwidth
    assert f"# Not measured, but of {DEFAULT}: {', '.join(named)}." in profile_text(result)


def test_decode_is_a_token_a_step_but_with_drafts_as_served() -> None:
    plain, drafted = fit(served()).profile.decode, fit(served(), with_drafts=True).profile.decode
    assert (plain.step_s, plain.sequence_s) == pytest.approx((0.25, 0.07 / 3), rel=1e-3)
    assert (drafted.step_s, drafted.sequence_s) == pytest.approx(
        (0.125, (4 / 24 - 0.125) / 3), rel=1e-3
    )


def test_rows_of_several_runs_count_together() -> None:
    one, other = (
        served(rows=[serve_row(256, 64)]),
        served(rows=[serve_row(1536, 64), serve_row(768, 64)]),
    )
    with pytest.raises(ConfigError, match="prompts of 320 tokens"):
        fit(one)
    assert fit(one, other).profile.prefill.token_s == pytest.approx(TOKEN_S, rel=1e-3)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (served(model="large"), "one model"),
        (served(dtype="float32"), "one model"),
        (served(kv=None), "--own"),
        (served(decode_plain_tok_s={"4": 0.0, "odd": 3.0}, decode_tok_s={}), "1, 4 and 8"),
    ],
)
def test_runs_that_make_no_profile_are_refused(other: ServeResult, said: str) -> None:
    runs = (served(), other) if said == "one model" else (other,)
    with pytest.raises(ConfigError) as error:
        fit(*runs)
    assert said in error.value.message


def test_the_command_writes_what_simulate_run_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, profile = tmp_path / "serve.json", tmp_path / "mine.toml"
    file.write_bytes(msgspec.json.encode(served()))
    assert main(["simulate", "fit", str(file), "--out", str(profile)]) == 0
    shown = capsys.readouterr()
    assert "decode step, batch 4" in shown.out
    assert "bandwidth.network" in shown.err
    assert main(["simulate", "fit", str(file)]) == 0
    shown = capsys.readouterr()
    assert shown.out == profile.read_text()
    assert "decode step, batch 4" in shown.err
    words = ["simulate", "run", "chats", "--limit", "5", "--hardware", str(profile)]
    assert main(words) == 0


def test_batches_that_are_no_numbers_say_nothing() -> None:
    rates = served().decode_plain_tok_s
    made_up = {"9" * 400: 1.0, "9" * 5000: 1.0, "0": 1.0, "\u00b2": 1.0, "-4": 1.0}
    assert fit(served(decode_plain_tok_s=rates | made_up)) == fit(served())


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"\xff", None])
def test_a_file_that_bench_serve_did_not_print_is_refused(
    text: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.json"
    if text is not None:
        file.write_bytes(text)
    assert main(["simulate", "fit", str(file)]) == (3 if text is None else 78)
    said = capsys.readouterr().err
    assert str(file) in said
    assert "mcctl bench serve --quick --output json >" in said
    assert ("is empty" in said) == (text == b"")
    assert main(["simulate", "fit", str(tmp_path)]) == 3
