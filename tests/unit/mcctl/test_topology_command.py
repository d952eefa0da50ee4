"""mcctl topology discover and check: on the trees of other servers, as tables, lines and JSON, with exit codes."""

import json
from pathlib import Path

import pytest
from kit.sysfs import bonded_server, eight_gpu_server, two_socket_server

from mcctl.main import main


def test_discover_shows_tree_and_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = eight_gpu_server(tmp_path).root
    assert main(["topology", "discover", "--sysfs", str(root)]) == 0
    out = capsys.readouterr().out
    for words in ("node 1", "cuda:7", "400 Gbit/s", "mlx5_7", "preferred"):
        assert words in out
    assert "docker0" not in out


def test_discover_as_json_and_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = eight_gpu_server(tmp_path).root
    assert main(["topology", "discover", "--sysfs", str(root), "--output", "json"]) == 0
    topology = json.loads(capsys.readouterr().out)
    assert topology["matrix"]["cuda:3"]["rdma"]["preferred"] == ["mlx5_3"]
    assert main(["topology", "discover", "--sysfs", str(root), "--output", "plain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20
    assert lines[0].split("\t")[:2] == ["cpu:0", "rdma"]


def test_discover_lays_the_override_over_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = two_socket_server(tmp_path / "sys").root
    file = tmp_path / "topology.toml"
    file.write_text('ignore = ["ens1f0"]')
    words = ["topology", "discover", "--sysfs", str(root), "--override", str(file)]
    assert main([*words, "-o", "plain"]) == 0
    assert "ens1f0" not in capsys.readouterr().out
    file.write_text('ignore = ["eth9"]')
    assert main(words) == 78
    assert "eth9" in capsys.readouterr().err


def test_this_host_can_be_discovered_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "discover"]) == 0
    assert "node 0" in capsys.readouterr().out
    assert main(["topology", "check"]) in (0, 78)
    assert main(["topology", "discover", "--sysfs", "/nonexistent"]) == 78


def test_check_exits_by_the_worst_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = bonded_server(tmp_path)
    assert main(["topology", "check", "--sysfs", str(tree.root), "-o", "json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert ("ens1f1", "warning") in {(f["device"], f["severity"]) for f in findings}
    tree.rdma("rxe0", None, nic="bond0", ipv4=None)
    assert main(["topology", "check", "--sysfs", str(tree.root)]) == 78
    captured = capsys.readouterr()
    assert "ip address add" in captured.out
    assert "rxe0/1" in captured.err


def test_check_of_a_good_server_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = eight_gpu_server(tmp_path).root
    assert main(["topology", "check", "--sysfs", str(root)]) == 0
    assert capsys.readouterr().out == "Nothing to complain about.\n"
