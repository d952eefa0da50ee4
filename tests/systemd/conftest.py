"""A host of its own for these tests: a real systemd in namespaces, on a copy of this host's root that is thrown away.

Needs root, systemd, and a root file system that an overlay takes; otherwise skipped with the reason, or with
REQUIRE=systemd in the environment failed. It has no network but lo, so the program is installed from a wheelhouse;
WHEELHOUSE names one that is there already (`make wheelhouse ENGINE=0`).
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.daemon import wait_for

HERE = Path(__file__).parent
SOURCE, WHEELHOUSE, SCRIPTS = "/mnt/source", "/mnt/wheelhouse", "/mnt/scripts"
BOOT_S = 60
_ENVIRONMENT = {
    "HOME": "/root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
_TOOLS = ("systemctl", "dbus-daemon", "unshare", "nsenter", "setpriv", "pivot_root", "ip", "make")


@dataclass(frozen=True, slots=True)
class Machine:
    """`run` is a command as root on it; paths under `root` are its files."""

    pid: int

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.pid}/root")

    def run(
        self, *words: str, fails: bool = False, timeout_s: float = 280.0
    ) -> subprocess.CompletedProcess[str]:
        """`fails`: it may; else a status that is not 0 fails the test."""
        namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        done = subprocess.run(
            ["nsenter", "--target", str(self.pid), *namespaces, *words],
            capture_output=True,
            text=True,
            check=False,
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
        )
        if done.returncode and not fails:
            tail = self.run("journalctl", "--no-pager", "--lines", "40", fails=True).stdout
            pytest.fail(f"{words}: {done.stdout}{done.stderr}\n{tail}")
        return done

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", "--property", name, unit).stdout.strip()

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--unit", unit, "--output", "cat", "--no-pager").stdout

    def write(self, path: str, text: str) -> None:
        """Readable for the daemons' user, as what install.sh puts in /etc/mooncake."""
        file = self.root / path.lstrip("/")
        file.write_text(text)
        file.chmod(0o644)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Minutes on a busy machine, so only for whoever names this folder, as `make test-systemd` does."""
    if any(HERE.name in Path(argument).parts for argument in config.args):
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="run by make test-systemd"))


def _why_not() -> str:
    if os.geteuid() != 0:
        return "namespaces with a systemd need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {' '.join(missing)}"
    if not Path("/usr/lib/systemd/systemd").exists():
        return "systemd is not installed"
    return "" if _cgroups() else "no cgroup2 hierarchy is mounted"


def _skip(why: str) -> None:
    if "systemd" in os.environ.get("REQUIRE", "").split(","):
        pytest.fail(f"REQUIRE=systemd, but {why}")
    pytest.skip(why)


def _cgroups() -> Path | None:
    """The cgroup that this process is in."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            own = [x for x in Path("/proc/self/cgroup").read_text().split() if x.startswith("0::")]
            return Path(where) / own[0].removeprefix("0::").lstrip("/")
    return None


@pytest.fixture(scope="session")
def wheelhouse(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := _why_not():
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
    parent = _cgroups()
    assert parent is not None
    cgroup = parent / f"mooncake-test-{os.getpid()}"
    cgroup.mkdir()
    log = (folder / "log").open("wb")
    disk = folder / "disk"
    disk.mkdir()
    shares = [checkout, SOURCE, wheelhouse, WHEELHOUSE, HERE, SCRIPTS]
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
