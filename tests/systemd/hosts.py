"""Three bare machines on a network of their own, and the operator's shell beside them: it has ssh to them, and a folder
with the wheelhouse that `make wheelhouse` would fill.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from systemd.booting import booted
from systemd.cluster import WAIT_S
from systemd.letting_in import layer_folder, let_in
from systemd.machine import ENGINE, Machine

ADDRESSES = ("10.0.0.1", "10.0.0.11", "10.0.0.12")
_OPERATOR = "10.0.0.254"


@dataclass(frozen=True, slots=True)
class Hosts:
    """By address; `folder` is where the operator's shell stands, `typed` is what it was given."""

    machines: dict[str, Machine]
    namespace: str
    folder: Path
    typed: list[str] = field(default_factory=list)

    def words(self, *words: str) -> list[str]:
        """A command of the operator's: on the network, not on a machine."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *words]

    def type(self, lines: str, *, timeout_s: float = 9 * WAIT_S) -> str:
        """What a bash says into which these lines are pasted: what reads its input takes lines away from it."""
        self.typed.append(lines)
        done = subprocess.run(
            self.words("bash", "-eu", "-o", "pipefail"),
            input=lines,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=self._env(),
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
    def goes_on(self, line: str) -> Iterator[None]:
        """Of a command that ends when nothing more is typed."""
        words = self.words("bash", "-c", line)
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self.folder, env=self._env()
        )
        try:
            yield
            process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
            process.communicate()

    def _env(self) -> dict[str, str]:
        return {"HOME": str(self.folder), "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}


@contextmanager
def hosts_on_a_network(folder: Path, wheelhouse: Path, engine: Path) -> Iterator[Hosts]:
    """`wheelhouse`: one as lent.py makes it, of which they get a copy."""
    namespace = f"mc-operator-{os.getpid()}"
    (folder / "bin").mkdir()
    layer = layer_folder()
    # The page's `make wheelhouse` was run before, without an engine.
    make = folder / "bin" / "make"
    make.write_text('#!/bin/sh\n[ "$*" = wheelhouse ] && [ -e dist/wheelhouse/systemd ]\n')
    make.chmod(0o755)
    shutil.copytree(wheelhouse, folder / "dist" / "wheelhouse")
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["ip", "netns", "del", namespace], check=False)
        _make_network(namespace)
        machines = {}
        for address in ADDRESSES:
            own = folder / address
            machine = stack.enter_context(booted(own, address, [engine, ENGINE], layer))
            _plug_in(machine, namespace, address)
            machines[address] = machine
        hosts = Hosts(machines, namespace, folder)
        stack.enter_context(let_in(hosts.words(), folder, machines))
        yield hosts


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
