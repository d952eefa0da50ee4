"""A machine in namespaces of its own: a real systemd, on a copy of this host's root that is thrown away with it."""

import importlib.util
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.daemon import wait_for
from systemd.able import own_cgroup
from systemd.machine import Machine

BOOT_S = 60
_BOOT = Path(__file__).parent / "boot.sh"


def give_up(why: str) -> None:
    """Skip, or fail where the tests of this folder are required."""
    if "systemd" in os.environ.get("REQUIRE", "").split(","):
        pytest.fail(f"REQUIRE=systemd, but {why}")
    pytest.skip(why)


def engine_folder() -> Path:
    """Where the packages lie of the Python that runs this."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    return Path(torch.origin).parent.parent


@contextmanager
def booted(
    folder: Path, name: str, shares: Sequence[Path | str], layer: Path | None = None
) -> Iterator[Machine]:
    """`shares`: a folder of this host's, where it is seen there, and so on; `layer` lies over this host's root. All
    that runs on it ends with it.
    """
    parent = own_cgroup()
    assert parent is not None
    cgroup = parent / f"mooncake-test-{os.getpid()}-{name}"
    cgroup.mkdir()
    disk = folder / "disk"
    disk.mkdir(parents=True)
    log = (folder / "log").open("wb")
    # The first process enters the cgroup and only then makes it the root of its own view. Whoever of setpriv's chain
    # is killed takes all that is inside with it.
    process = subprocess.Popen(
        [
            *("setpriv", "--pdeathsig", "KILL"),
            *("unshare", "--mount", "--propagation", "private", "--pid", "--uts", "--ipc", "--net"),
            *("--fork", "--kill-child=KILL", "bash", "-c"),
            'echo 0 >"$0/cgroup.procs" && exec unshare --cgroup "$@"',
            *(str(cgroup), str(_BOOT), str(disk), str(layer or "")),
            *(str(share) for share in shares),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    try:
        yield _running(process, folder / "log")
    finally:
        process.kill()
        process.wait()
        log.close()
        _remove_cgroup(cgroup)


def _running(process: "subprocess.Popen[bytes]", log: Path) -> Machine:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline_s = time.monotonic() + BOOT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            give_up(f"no systemd could be booted here: {log.read_text()[-500:]}")
        pids = children.read_text().split()
        if pids:
            machine = Machine(int(pids[0]))
            if (machine.root / "run/systemd/private").exists():
                state = machine.run("systemctl", "is-system-running", "--wait", fails=True)
                if state.stdout.strip() == "running":
                    return machine
                failed = machine.run("systemctl", "--failed", "--no-pager", fails=True).stdout
                give_up(f"systemd is {state.stdout.strip()}: {failed}")
        time.sleep(0.05)
    give_up(f"systemd did not boot in {BOOT_S} s: {log.read_text()[-500:]}")
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
