"""`make quickstart`, in a pipe, end to end on the real model: answers are equal, KV is reused, nothing is left running.

In the environment that runs this: nothing is installed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.examples import examples_of

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
MAKE = ("make", "--old-file", f"{BIN.parent}/.installed-engine", f"VENV={BIN.parent}")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_quickstart_reuses_and_leaves_nothing() -> None:
    done = subprocess.run(
        [*MAKE, "quickstart"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["answers_equal"] is True
    assert result["reused_tokens"] > 3000
    assert result["blocks_stored"] > 20
    assert result["bytes_moved"] > 50_000_000
    assert result["ttft_cold_s"] > 2 * result["ttft_reused_s"] > 0
    assert result["memory_bytes"] < 4 << 30
    assert set(result["pids"]) == {
        "mc-master",
        "mc-cachenode",
        "mc-prefill",
        "mc-decode",
        "mc-gateway",
    }
    assert not any(Path(f"/proc/{pid}").exists() for pid in result["pids"].values())
    for row in result["requests"]:
        assert row["is_equal"]
        assert row["answer"]
    assert sum(row["reused_tokens"] for row in result["requests"]) == result["reused_tokens"]


def test_bench_gives_its_rows_by_the_line_of_the_page(tmp_path: Path) -> None:
    [line] = [
        each.text
        for each in examples_of(ROOT / "man" / "mcctl.1")
        if each.text.startswith("mcctl bench serve ")
    ]
    done = subprocess.run(
        ["bash", "-c", f"{line} --quick --prefix 512"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"},
        timeout=550,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "serve.json").read_text())
    [row] = result["rows"]
    assert (row["prefix_tokens"], row["suffix_tokens"]) == (512, 64)
    assert row["ttft_cold_s"] > row["ttft_reused_s"] > row["overhead_s"] > 0
    assert row["reused_tokens"] == 512
    assert set(result["decode_tok_s"]) == {"1", "4", "8"}
