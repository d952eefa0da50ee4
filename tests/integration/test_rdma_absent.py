"""Daemons that are told to use RDMA on a host that has none: tcp instead with the reason, or no start."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.daemon import Daemon, free_port

from daemons.client.cluster import ClusterClient
from daemons.protocol.segment import RegionRef
from daemons.transfer import Read, TransferEngine, contiguous
from daemons.transfer.transports.rdma import why_unavailable
from mcctl.main import main

WHY = why_unavailable()
pytestmark = pytest.mark.skipif(not WHY, reason="this host has RDMA")


def cachenode(directory: Path, master: str, transports: str) -> list[str]:
    return [
        f"master.endpoint={master}",
        "node.id=node-a",
        "node.listen=tcp://127.0.0.1:0",
        "node.metrics=",
        f"segment.directory={directory}",
        "segment.size=4MiB",
        f"transfer.transports={transports}",
    ]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    daemon = Daemon(
        "daemons.mc_master",
        f"node.listen={endpoint}",
        f"node.events=tcp://127.0.0.1:{free_port()}",
        "node.metrics=",
        f"node.state_dir={tmp_path / 'master'}",
    )
    try:
        daemon.find(r"(ready)")
        yield endpoint
    finally:
        daemon.stop()


def test_daemon_falls_back_to_tcp_and_says_why(
    tmp_path: Path, master: str, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon("daemons.mc_cachenode", *cachenode(tmp_path, master, '["rdma", "tcp"]'))
    engine = TransferEngine(transports=("rdma", "tcp"))
    try:
        daemon.find(r"(joined master)")
        assert daemon.find(r"rdma is not used why=(.*)") == WHY
        assert main(["topology", "show", "--endpoint", master, "--output", "json"]) == 0
        assert f"rdma: not used: {WHY}" in capsys.readouterr().out
        assert main(["topology", "show", "--endpoint", master]) == 0
        assert "not used" in capsys.readouterr().out
        with ClusterClient(master) as client:
            node = client.nodes().nodes[0].node
        assert node.data is not None
        assert (node.data.rdma, node.segments[0].region.address) == ("", node.data)
        region: RegionRef = node.segments[0].region
        local = np.ones(4096, np.uint8)
        engine.read(region, [Read.into(contiguous(0, 4096), local)])
        assert not local.any(), "a segment begins as zeros"
    finally:
        engine.close()
        daemon.stop()


def test_daemon_that_is_left_with_rdma_alone_refuses_in_one_line(tmp_path: Path) -> None:
    settings = cachenode(tmp_path, "tcp://127.0.0.1:1", '["rdma"]')
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "daemons.mc_cachenode", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 78
    assert done.stderr.splitlines() == [
        f"mc-cachenode: transports name rdma without tcp, but RDMA cannot be used: {WHY}"
    ]
    assert not list(tmp_path.rglob("*.segment"))


def test_topology_check_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "check", "--output", "json"]) in (0, 78)
    said = capsys.readouterr().out
    assert f"RDMA cannot be used: {WHY}" in said
    assert main(["topology", "check", "--rdma"]) == 78
    assert "RDMA cannot be used" in capsys.readouterr().err
