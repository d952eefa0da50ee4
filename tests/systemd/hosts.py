"""Three bare machines on a network of their own, and the operator's shell beside them: an ssh that leads to their
roots, and a folder with the wheelhouse that `make wheelhouse` would fill.
"""

import importlib.metadata
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from systemd.booting import booted
from systemd.cluster import WAIT_S
from systemd.machine import ENGINE, Machine

ADDRESSES = ("10.0.0.1", "10.0.0.11", "10.0.0.12")
_OPERATOR = "10.0.0.254"
_LENT = ("torch", "safetensors", "gguf")
_SSH = r"""#!/bin/bash
# ssh [-n] root@ADDRESS COMMAND...: as root on that machine, by its shell
[ "$1" != -n ] || { exec </dev/null; shift; }
address=${1#root@}
shift
exec nsenter --target "$(cat "${0%/*}/../pids/$address")" --mount --uts --ipc --net --pid --cgroup -- \
    env --ignore-environment HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c "$*"
"""


@dataclass(frozen=True, slots=True)
class Hosts:
    """By address; `folder` is where the operator's shell stands."""

    machines: dict[str, Machine]
    namespace: str
    folder: Path

    def words(self, *words: str) -> list[str]:
        """A command of the operator's: on the network, not on a machine."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *words]

    def type(self, lines: str, *, timeout_s: float = 9 * WAIT_S) -> str:
        """What a bash says into which these lines are pasted: what reads its input takes lines away from it."""
        done = subprocess.run(
            self.words("bash", "-eu", "-o", "pipefail"),
            input=lines,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env={"HOME": str(self.folder), "PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
            timeout=timeout_s,
        )
        if done.returncode:
            logs = "".join(
                machine.run("journalctl", "--no-pager", "--lines", "30", fails=True).stdout
                for machine in self.machines.values()
            )
            pytest.fail(f"{lines}\n{done.stdout}{done.stderr}\n{logs}")
        return done.stdout


@contextmanager
def hosts_on_a_network(folder: Path, wheelhouse: Path, engine: Path) -> Iterator[Hosts]:
    namespace = f"mc-operator-{os.getpid()}"
    (folder / "bin").mkdir()
    ssh = folder / "bin" / "ssh"
    ssh.write_text(_SSH)
    ssh.chmod(0o755)
    (folder / "pids").mkdir()
    # The page's `make wheelhouse` was run before, without an engine.
    make = folder / "bin" / "make"
    make.write_text('#!/bin/sh\n[ "$*" = wheelhouse ] && [ -e dist/wheelhouse/systemd ]\n')
    make.chmod(0o755)
    _fill(folder / "dist" / "wheelhouse", wheelhouse)
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["ip", "netns", "del", namespace], check=False)
        _make_network(namespace)
        machines = {}
        for address in ADDRESSES:
            machine = stack.enter_context(booted(folder / address, address, [engine, ENGINE]))
            _plug_in(machine, namespace, address)
            (folder / "pids" / address).write_text(str(machine.pid))
            machines[address] = machine
        yield Hosts(machines, namespace, folder)


def _make_network(namespace: str) -> None:
    try:
        _ip("netns", "add", namespace)
        _ip("-n", namespace, "link", "add", "net", "type", "bridge")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no machines can be joined here: {error.stderr}")
    _ip("-n", namespace, "address", "add", f"{_OPERATOR}/24", "dev", "net")
    _ip("-n", namespace, "link", "set", "net", "up")
    _ip("-n", namespace, "link", "set", "lo", "up")


def _plug_in(machine: Machine, namespace: str, address: str) -> None:
    port = f"port{address.rpartition('.')[2]}"
    # fmt: off
    _ip("-n", namespace, "link", "add", port, "type", "veth", "peer", "eth0", "netns", str(machine.pid))
    # fmt: on
    _ip("-n", namespace, "link", "set", port, "master", "net", "up")
    machine.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
    machine.run("ip", "link", "set", "eth0", "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _fill(target: Path, wheelhouse: Path) -> None:
    """With wheels that lend this host's torch and the like: their own would be unpacked for half a minute."""
    shutil.copytree(wheelhouse, target)
    for name in _LENT:
        version = importlib.metadata.version(name)
        stem = f"{name}-{version}"
        with zipfile.ZipFile(target / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"zz_{name}.pth", f"{ENGINE}\n")
            about = f"{stem}.dist-info"
            wheel.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
            wheel.writestr(
                f"{about}/WHEEL",
                "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            files = [f"zz_{name}.pth", f"{about}/METADATA", f"{about}/WHEEL", f"{about}/RECORD"]
            wheel.writestr(f"{about}/RECORD", "".join(f"{file},,\n" for file in files))
