"""`import mcctl` is light; its public names are there all the same."""

import subprocess
import sys

import pytest

import mcctl


@pytest.mark.parametrize(
    "name", ["ClusterClient", "ClusterOptions", "LocalCluster", "TransferEngine"]
)
def test_public_name_is_there(name: str) -> None:
    assert getattr(mcctl, name).__name__ == name
    assert name in dir(mcctl)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        mcctl.nonsense  # noqa: B018


def test_import_alone_brings_nothing_else() -> None:
    code = "import mcctl, sys; print([m for m in sys.modules if m.partition('.')[0] in ('daemons', 'zmq', 'numpy')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
