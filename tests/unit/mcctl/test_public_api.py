"""`import mcctl` is light; its public names are there all the same."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mcctl
from daemons.core.errors import ConfigError

MAN = Path(__file__).parents[3] / "man"


@pytest.mark.parametrize("name", sorted({*mcctl._HOMES, "Store", "Conflict", "Read", "contiguous"}))
def test_public_name_is_there(name: str) -> None:
    assert getattr(mcctl, name).__name__ == name
    assert name in dir(mcctl)


def test_errors_and_names_in_the_manual_are_public() -> None:
    manual = "".join((MAN / page).read_text() for page in ("mc-store.7", "mc-transfer.7"))
    raised = set(re.findall(r"^\.Er (\w+)", manual, re.MULTILINE))
    assert {"Conflict", "TransferError"} <= raised
    assert not raised - set(mcctl._HOMES)
    called = set(re.findall(r"(?<![.\w])([A-Z]\w+)\(", manual))
    named = set(re.findall(r"^\.Fn (as_\w+|allocate_\w+|contiguous)", manual, re.MULTILINE))
    assert {"ReadBatch", "as_memory"} <= called | named
    assert not (called | named) - {*mcctl._HOMES, "Path"}
    assert "from daemons" not in manual


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        mcctl.nonsense  # noqa: B018


def test_import_alone_brings_nothing_else() -> None:
    code = "import mcctl, sys; print([m for m in sys.modules if m.partition('.')[0] in ('daemons', 'zmq', 'numpy')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_path_may_be_a_str(tmp_path: Path) -> None:
    key = tmp_path / "no.key"
    for given in (key, str(key)):
        for opened in (mcctl.Store, mcctl.AsyncStore, mcctl.ClusterClient):
            with pytest.raises(ConfigError, match=r"no\.key"):
                opened(f"tcp://127.0.0.1:1#{'ab' * 32}", key_file=given)
    engine = mcctl.TransferEngine(unix_dir=str(tmp_path))
    assert list(tmp_path.glob("*.sock"))
    engine.close()
    with pytest.raises(ConfigError, match=r"no\.toml"):
        mcctl.TransferEngine(topology=str(tmp_path / "no.toml"))
