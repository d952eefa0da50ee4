"""A daemon that cannot start says why in one line and leaves nothing: no memory, no socket, no directory."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)


def start(process: str, *settings: str) -> subprocess.CompletedProcess[str]:
    flags = [part for setting in settings for part in ("--set", setting)]
    return subprocess.run(
        [sys.executable, "-m", f"daemons.{process}", *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    return [
        "node.listen=tcp://127.0.0.1:0",
        "node.metrics=",
        f"transfer.unix_dir={tmp_path / 'sockets'}",
        f"segment.directory={tmp_path / 'segments'}",
    ]


def left(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if not path.is_dir()]


def test_segment_that_does_not_fit_leaves_nothing(tmp_path: Path, places: list[str]) -> None:
    done = start("mc_cachenode", *places, "segment.size=9999TiB")
    assert done.returncode == 78
    assert len(done.stderr.splitlines()) == 1
    assert "make the segment smaller" in done.stderr
    assert left(tmp_path) == []
    assert list((tmp_path / "segments").iterdir()) == []


@pytest.mark.parametrize("key", ["node.listen", "node.metrics", "transfer.port"])
def test_taken_address_is_found_before_memory_is(
    tmp_path: Path, places: list[str], taken: str, key: str
) -> None:
    value = {"node.listen": f"tcp://{taken}", "transfer.port": taken.rpartition(":")[2]}
    done = start("mc_cachenode", *places, "segment.size=64MiB", f"{key}={value.get(key, taken)}")
    assert done.returncode == 78
    assert "allocated" not in done.stderr
    assert "in use" in done.stderr
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("process", "key"), [("mc_prefill", "node.metrics"), ("mc_decode", "node.listen")]
)
def test_taken_address_is_found_before_a_model_is_loaded(
    tmp_path: Path, places: list[str], taken: str, process: str, key: str
) -> None:
    value = f"tcp://{taken}" if key == "node.listen" else taken
    done = start(process, *places[:3], f"model.path={tmp_path / 'none'}", f"{key}={value}")
    assert done.returncode == 78
    assert "in use" in done.stderr, "not a word of the model yet"
    assert left(tmp_path) == []


def test_missing_model_leaves_nothing(tmp_path: Path, places: list[str]) -> None:
    done = start("mc_prefill", *places[:3], f"model.path={tmp_path / 'none'}")
    assert done.returncode == 78
    assert "mcctl model fetch" in done.stderr
    assert left(tmp_path) == []
