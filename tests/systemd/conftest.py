"""A host of its own for these tests: a real systemd in namespaces, on a copy of this host's root that is thrown away.

Needs root, systemd, and a root file system that an overlay takes; otherwise skipped with the reason, or with
REQUIRE=systemd in the environment failed. It has no network but lo, so the program is installed from a wheelhouse;
WHEELHOUSE names one that is there already (`make wheelhouse ENGINE=0`).
"""

import importlib.util
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.daemon import wait_for
from systemd.able import own_cgroup, why_not
from systemd.machine import ENGINE, REMARKS, SCRIPTS, SOURCE, WHEELHOUSE, Machine

HERE = Path(__file__).parent
BOOT_S = 60
TEST_S = 600


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


def _skip(why: str) -> None:
    if "systemd" in os.environ.get("REQUIRE", "").split(","):
        pytest.fail(f"REQUIRE=systemd, but {why}")
    pytest.skip(why)


@pytest.fixture(scope="session")
def wheelhouse(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := why_not():
        _skip(why)
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
        _skip(f"make wheelhouse failed, e.g. without a network: {made.stderr[-500:]}")
    return folder


@pytest.fixture(scope="session")
def machine(
    checkout: Path, wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    parent = own_cgroup()
    assert parent is not None
    cgroup = parent / f"mooncake-test-{os.getpid()}"
    cgroup.mkdir()
    log = (folder / "log").open("wb")
    disk = folder / "disk"
    disk.mkdir()
    shares = [checkout, SOURCE, wheelhouse, WHEELHOUSE, HERE, SCRIPTS, _engine(), ENGINE]
    # The first process enters the cgroup and only then makes it the root of its own view. Whoever of setpriv's chain
    # is killed takes all that is inside with it.
    process = subprocess.Popen(
        [
            *("setpriv", "--pdeathsig", "KILL"),
            *("unshare", "--mount", "--propagation", "private", "--pid", "--uts", "--ipc", "--net"),
            *("--fork", "--kill-child=KILL", "bash", "-c"),
            'echo 0 >"$0/cgroup.procs" && exec unshare --cgroup "$@"',
            *(str(cgroup), str(HERE / "boot.sh"), str(disk), *(str(share) for share in shares)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    try:
        yield _booted(process, folder / "log")
    finally:
        process.kill()
        process.wait()
        log.close()
        _remove_cgroup(cgroup)


@pytest.fixture(scope="session")
def before(machine: Machine) -> set[str]:
    """The files of a machine that nothing was installed on: ask for it first."""
    return machine.files()


def _engine() -> Path:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    return Path(torch.origin).parent.parent


def _booted(process: "subprocess.Popen[bytes]", log: Path) -> Machine:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline_s = time.monotonic() + BOOT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            _skip(f"no systemd could be booted here: {log.read_text()[-500:]}")
        pids = children.read_text().split()
        if pids:
            machine = Machine(int(pids[0]))
            if (machine.root / "run/systemd/private").exists():
                state = machine.run("systemctl", "is-system-running", "--wait", fails=True)
                if state.stdout.strip() == "running":
                    return machine
                failed = machine.run("systemctl", "--failed", "--no-pager", fails=True).stdout
                _skip(f"systemd is {state.stdout.strip()}: {failed}")
        time.sleep(0.05)
    _skip(f"systemd did not boot in {BOOT_S} s: {log.read_text()[-500:]}")
    raise AssertionError


def _remove_cgroup(cgroup: Path) -> None:
    def is_gone() -> bool:
        for folder in sorted((x for x in cgroup.rglob("*") if x.is_dir()), reverse=True):
            try:
                folder.rmdir()
            except OSError:
                return False
        try:
            cgroup.rmdir()
        except OSError:
            return False
        return True

    wait_for(is_gone, 10, what="the machine's processes to end")
