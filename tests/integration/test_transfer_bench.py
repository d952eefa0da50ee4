"""`mcctl bench transfer` as a user runs it, with sizes that take seconds."""

import json

import pytest

from daemons.transfer.transports.rdma import why_unavailable
from mcctl.main import main
from mcctl.perftest import parse_bandwidth

WHY_NO_RDMA = why_unavailable()


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
