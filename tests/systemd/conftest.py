"""Hosts of their own for these tests: a real systemd in namespaces, on a copy of this host's root that is thrown away.

Needs root, systemd, and a root file system that an overlay takes; otherwise skipped with the reason, or with
REQUIRE=systemd in the environment failed. It has no network but lo, so the program is installed from a wheelhouse;
WHEELHOUSE names one that is there already (`make wheelhouse ENGINE=0`).
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from systemd.able import why_not
from systemd.booting import booted, engine_folder, give_up
from systemd.lent import lend
from systemd.machine import (
    ENGINE,
    LENT_WHEELHOUSE,
    REMARKS,
    SCRIPTS,
    SOURCE,
    WHEELHOUSE,
    Machine,
)

HERE = Path(__file__).parent
TEST_S = 900


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Minutes on a busy machine, so only for whoever names this folder, as `make test-systemd` does."""
    is_named = any(HERE.name in Path(argument).parts for argument in config.args)
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_S))
            if not is_named:
                item.add_marker(pytest.mark.skip(reason="run by make test-systemd"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in REMARKS:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def wheelhouse(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := why_not():
        give_up(why)
    if "WHEELHOUSE" in os.environ:
        return Path(os.environ["WHEELHOUSE"])
    folder = tmp_path_factory.mktemp("wheelhouse") / "wheels"
    made = subprocess.run(
        ["make", "wheelhouse", "ENGINE=0", f"WHEELHOUSE={folder}"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        give_up(f"make wheelhouse failed, e.g. without a network: {made.stderr[-500:]}")
    return folder


@pytest.fixture(scope="session")
def lent_wheelhouse(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lent") / "wheels"
    lend(folder, wheelhouse)
    return folder


@pytest.fixture(scope="session")
def machine(
    checkout: Path,
    wheelhouse: Path,
    lent_wheelhouse: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Machine]:
    shares = [checkout, SOURCE, wheelhouse, WHEELHOUSE, lent_wheelhouse, LENT_WHEELHOUSE]
    shares += [HERE, SCRIPTS, engine_folder(), ENGINE]
    with booted(tmp_path_factory.mktemp("machine"), "single", shares) as made:
        yield made


@pytest.fixture(scope="session")
def before(machine: Machine) -> set[str]:
    """The files of a machine that nothing was installed on: ask for it first."""
    return machine.files()
