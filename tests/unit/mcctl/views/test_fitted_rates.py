"""Rates that other benchmarks measured stand in a fitted profile; of all others it says whose they are."""

import json
from pathlib import Path

import msgspec
import pytest
from kit.served import served

from daemons.core.errors import ConfigError
from daemons.simulation.hardware import DEFAULT, find_profile, parse_profile
from mcctl.bench.ssd import SsdResult, SsdRow
from mcctl.bench.transfer import Operation, TransferResult, TransferRow, TransportName
from mcctl.main import main
from mcctl.views.fitted_rates import network_rate, ssd_rate


def moved(transport: TransportName, operation: Operation, gb_s: float) -> TransferRow:
    return TransferRow(
        transport=transport,
        operation=operation,
        size_bytes=1 << 20,
        batch=1,
        threads=1,
        gb_s=gb_s,
        limit_gb_s=None,
        ratio=None,
        p50_us=1.0,
        limit_p50_us=None,
        cpu_s_per_gb=0.1,
    )


def disk(*reads: float, is_direct: bool = True) -> SsdResult:
    rows = [
        SsdRow(
            what="read", size_bytes=65536, threads=1, value=each, limit=9.0, unit="GB/s", ratio=1
        )
        for each in reads
    ]
    opened = SsdRow(
        what="open", size_bytes=4096, threads=1, value=9e5, limit=9e5, unit="blocks/s", ratio=1
    )
    return SsdResult(is_direct=is_direct, rows=[*rows, opened])


TCP = [moved("shm", "read", 40.0), moved("tcp", "read", 2.0), moved("tcp", "read", 3.0)]
RDMA = [*TCP, moved("rdma", "read", 1.5), moved("rdma", "write", 7.0)]


@pytest.mark.parametrize(("rows", "gb_s", "said"), [(TCP, 3.0, "tcp"), (RDMA, 1.5, "rdma")])
def test_the_network_is_the_fastest_read_between_hosts(
    rows: list[TransferRow], gb_s: float, said: str
) -> None:
    found = network_rate(TransferResult(rows=rows, limits={}))
    assert found.bytes_per_s == pytest.approx(gb_s * 1e9)
    assert found.source == f"bench transfer, {said} READ of 1.0 MiB"


def test_rates_that_are_of_no_link_or_no_disk_are_refused() -> None:
    with pytest.raises(ConfigError, match="no READ over rdma or tcp"):
        network_rate(TransferResult(rows=TCP[:1], limits={}))
    with pytest.raises(ConfigError, match="which is no rate"):
        network_rate(TransferResult(rows=[moved("tcp", "read", 0.0)], limits={}))
    for result in (disk(2.0, is_direct=False), disk()):
        with pytest.raises(ConfigError, match="page cache"):
            ssd_rate(result)
    assert ssd_rate(disk(1.0, 2.5)).bytes_per_s == pytest.approx(2.5e9)


def test_the_command_takes_them_and_says_which_were_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: tmp_path / f"{name}.json" for name in ("serve", "transfer", "ssd")}
    printed = (served(), TransferResult(rows=RDMA, limits={}), disk(2.5))
    for path, result in zip(paths.values(), printed, strict=True):
        path.write_bytes(msgspec.json.encode(result))
    out = tmp_path / "mine.toml"
    words = ["simulate", "fit", str(paths["serve"]), "--out", str(out)]
    words += ["--transfer", str(paths["transfer"]), "--ssd", str(paths["ssd"])]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "bench transfer, rdma READ of 1.0 MiB" in shown
    assert shown.count("not measured") >= 3
    text, base = out.read_text(), find_profile(DEFAULT)
    profile = parse_profile(text, "mine")
    assert profile.bandwidth.network == pytest.approx(1.5e9)
    assert profile.ssd == msgspec.structs.replace(base.ssd, read=2.5e9)
    assert profile.object == base.object
    assert f"# Not measured, but of {DEFAULT}: ssd.write, ssd.latency_s, object." in text
    assert "# bandwidth.network: by bench transfer, rdma READ of 1.0 MiB." in text
    assert main([*words, "--output", "json"]) == 0
    rates = {rate["what"]: rate for rate in json.loads(capsys.readouterr().out)["rates"]}
    assert rates["ssd.read"]["is_measured"]
    assert rates["object.read"]["source"] == DEFAULT


def test_a_file_of_another_verb_is_named_with_what_prints_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = tmp_path / "serve.json"
    serve.write_bytes(msgspec.json.encode(served()))
    assert main(["simulate", "fit", str(serve), "--transfer", str(serve)]) == 78
    assert "is not what mcctl bench transfer --output json prints" in capsys.readouterr().err
