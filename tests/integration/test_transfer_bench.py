"""`mcctl bench transfer` as a user runs it, with sizes that take seconds."""

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from kit.examples import examples_of

from daemons.core.units import MIB
from daemons.transfer import Read, TransferEngine, contiguous
from daemons.transfer.transports.rdma import why_unavailable
from mcctl.bench import transfer as transfer_bench
from mcctl.bench import transfer_limits
from mcctl.bench.perftest import parse_bandwidth
from mcctl.main import main

WHY_NO_RDMA = why_unavailable()
PAGE = Path(__file__).resolve().parents[2] / "man" / "mc-transfer.7"


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are not looked at, so they may be bad."""
    monkeypatch.setattr(transfer_bench, "_ROUND_S", 0.01)
    monkeypatch.setattr(transfer_bench, "_ROUNDS", 3)


def test_it_prints_each_figure_beside_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["bench", "transfer", "--sizes", "4KiB,1MiB", "--batch", "2", "--output", "json"])
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    schemes = {"shm", "tcp"} if WHY_NO_RDMA else {"shm", "tcp", "rdma"}
    assert {row["transport"] for row in result["rows"]} == schemes
    for row in result["rows"]:
        if row["transport"] == "rdma":
            continue
        assert min(row["gb_s"], row["limit_gb_s"], row["p50_us"], row["cpu_s_per_gb"]) > 0


def test_the_line_of_the_manual_page_measures_what_it_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [line] = [
        each.text for each in examples_of(PAGE) if each.text.startswith("mcctl bench transfer ")
    ]
    assert main([*line.split()[1:], "--output", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["transport"], row["size_bytes"]) for row in rows} == {("shm", 4096), ("shm", MIB)}


def test_bad_sizes_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "transfer", "--sizes", "4parsecs"]) == 2
    assert main(["bench", "transfer", "--sizes", "0"]) == 2
    assert main(["bench", "transfer", "--transport", "pigeon"]) == 2
    assert "pigeon" in capsys.readouterr().err


@pytest.mark.skipif(not WHY_NO_RDMA, reason="this host has RDMA")
def test_rdma_alone_says_why_it_cannot_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "transfer", "--transport", "rdma"]) == 78
    assert WHY_NO_RDMA in capsys.readouterr().err


def test_average_of_perftest_is_read() -> None:
    output = """
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 1048576    20             81.77              78.50		   0.000079
---------------------------------------------------------------------------------------
"""
    assert parse_bandwidth(output, 1 << 20) == 78.5 * 2**20
    assert parse_bandwidth(output, 1 << 10) is None
    assert parse_bandwidth(output.replace("78.50", "0.00"), 1 << 20) is None
    assert parse_bandwidth("Couldn't connect to 127.0.0.1:18515", 1 << 20) is None


STAND_IN = '''
import ctypes

class TransferEngine:
    """Answers as the published one does; every READ brings the value that the other worker has."""

    def initialize(self, host, metadata, protocol, device):
        return 0 if (host, metadata, protocol) == ("127.0.0.1", "P2PHANDSHAKE", "tcp") else -1

    def get_rpc_port(self):
        print("noise on stdout")
        return 1234

    def register_memory(self, address, length):
        return 0

    def transfer_sync_read(self, target, here, there, length):
        ctypes.memset(here, 1, length)
        return 0 if target == "127.0.0.1:1234" else -1

    def batch_transfer_sync_read(self, target, here, there, lengths):
        return max(self.transfer_sync_read(target, *one) for one in zip(here, there, lengths))

    def transfer_sync_write(self, target, here, there, length):
        return 0

    def batch_transfer_sync_write(self, target, here, there, lengths):
        return 0
'''


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A Python that has something with the published engine's calls."""
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "engine.py").write_text(STAND_IN)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_the_published_engine_is_measured_beside_ours(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--sizes", "4KiB", "--transport", "tcp", "--batch", "2"]
    assert main(["bench", "transfer", *sizes, "--beside", str(published), "-o", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(row["operation"], row["variant"]) for row in result["beside"]] == [
        (operation, variant) for operation in ("read", "write") for variant in ("default", "tuned")
    ]
    assert all(min(row["ratio"], row["gb_s"], row["p50_us"]) > 0 for row in result["beside"])


def test_a_ratio_compares_what_was_measured_in_the_same_round() -> None:
    theirs, ours = [2.0, 30.0, 8.0], [1.0, 10.0, 8.0]  # of the medians: one
    assert transfer_bench._ratio(theirs, ours) == 2.0


def test_streams_of_the_limit_move_bytes_of_their_own() -> None:
    """As the engine's do; both ends would look at half of the memory otherwise, which is faster."""
    size = 16 * MIB
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(transfer_bench._peer(size, ("tcp",)))
        region, port = peer.announced.region, peer.announced.plain_port
        engine = stack.enter_context(TransferEngine(transports=("tcp",)))
        sent = np.arange(size // 8, dtype=np.uint64).view(np.uint8)
        found = np.zeros(size, np.uint8)
        (write,) = transfer_limits.plain_sockets(stack, port, [sent], is_write=True)
        (read,) = transfer_limits.plain_sockets(stack, port, [found], is_write=False)
        write()
        read()
        assert np.array_equal(found, sent)
        found[:] = 0
        engine.read(region, [Read.into(contiguous(0, size), found)])
        assert np.array_equal(found, sent)


def test_a_python_without_the_published_engine_is_told_how_to_get_it(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--sizes", "4KiB", "--transport", "tcp"]
    assert main(["bench", "transfer", *sizes, "--beside", sys.executable]) == 78
    assert "pip install mooncake-transfer-engine" in capsys.readouterr().err
    assert main(["bench", "transfer", *sizes, "--beside", str(tmp_path / "nothing")]) == 78
    assert "cannot be run" in capsys.readouterr().err
    wrong = STAND_IN.replace(
        "ctypes.memset(here, 1, length)", "ctypes.memset(here, 7, length // 2)"
    )
    (tmp_path / "mooncake" / "engine.py").write_text(wrong)
    assert main(["bench", "transfer", *sizes, "--beside", str(published)]) == 7
    assert "a READ brought something else" in capsys.readouterr().err
    assert main(["bench", "transfer", *sizes, "--beside", str(published), "--threads", "2"]) == 2
