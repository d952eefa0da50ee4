"""Hosts as network namespaces joined by rate-limited veth links. Needs root, ip and tc.

Touches nothing outside the namespaces it makes.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
LINK_MBIT = 100
"""Slow enough that a busy machine is no limit."""
LINK_BYTES_PER_S = LINK_MBIT * 125_000
SEED = 7


def why_no_hosts() -> str:
    """Why they cannot be made here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (iproute2)"
    name = f"mc-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


@dataclass
class Hosts:
    """`a` serves, `b` reads; link i joins 10.251.i.1 of a with 10.251.i.2 of b, the last one with c if apart."""

    num_links: int
    are_apart: bool = False
    a: str = f"mc-a-{os.getpid()}"
    b: str = f"mc-b-{os.getpid()}"
    c: str = f"mc-c-{os.getpid()}"
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def make(self) -> None:
        for name in (self.a, self.b, self.c):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for link in range(self.num_links):
            far = self.c if self.are_apart and link == self.num_links - 1 else self.b
            # fmt: off
            ip("-n", self.a, "link", "add", f"a{link}", "type", "veth", "peer", f"b{link}", "netns", far)
            # fmt: on
            for name, side, number in ((self.a, "a", 1), (far, "b", 2)):
                device = f"{side}{link}"
                ip("-n", name, "address", "add", f"10.251.{link}.{number}/24", "dev", device)
                ip("-n", name, "link", "set", device, "up")
            limit = ["rate", f"{LINK_MBIT}mbit", "burst", "256k", "latency", "100ms"]
            command = ["tc", "-n", self.a, "qdisc", "add", "dev", f"a{link}", "root", "tbf", *limit]
            subprocess.run(command, check=True)

    def remove(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for name in (self.a, self.b, self.c):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def cut(self, link: int) -> None:
        """As if the cable were pulled: both ends see it."""
        ip("-n", self.a, "link", "set", f"a{link}", "down")

    def mend(self, link: int) -> None:
        ip("-n", self.a, "link", "set", f"a{link}", "up")

    def start(
        self, namespace: str, *words: str, option: str = "-m", log: Path | None = None
    ) -> "subprocess.Popen[str]":
        """A Python module in a namespace, its stderr in a file or a pipe; with -c, code."""
        with contextlib.ExitStack() as files:
            errors = subprocess.PIPE if log is None else files.enter_context(log.open("w"))
            process = self._spawn(
                ["ip", "netns", "exec", namespace, sys.executable, option, *words], errors
            )
        self.processes.append(process)
        return process

    def _spawn(self, command: list[str], errors: Any) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
        )

    def offer(self, num_bytes: int, links: list[int]) -> str:
        """Memory of `pattern(SEED)` at `a`, reached over these links."""
        hosts = [f"10.251.{link}.1" for link in links]
        words = ["kit.remote_memory", "offer", str(SEED), str(num_bytes), *hosts]
        region: str = line_of(self.start(self.a, *words))["region"]
        return region

    def start_reading(
        self, region: str, *, at: str = "", timeout_s: float = 30
    ) -> "subprocess.Popen[str]":
        return self.start(at or self.b, "kit.remote_memory", "stripe", str(timeout_s), region)

    def read_all(self, region: str) -> Any:
        return lines_of(self.start_reading(region))[-1]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def line_of(process: "subprocess.Popen[str]") -> Any:
    """The next line of JSON that it prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        pytest.fail(f"it ended: {process.stderr.read()}")
    return json.loads(line)


def lines_of(process: "subprocess.Popen[str]", timeout_s: float = 60) -> list[Any]:
    """All of them, once it has ended well."""
    out, errors = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, errors
    return [json.loads(line) for line in out.splitlines()]


@contextmanager
def hosts_with(num_links: int, *, are_apart: bool = False) -> Iterator[Hosts]:
    """Whatever they run ends with them."""
    hosts = Hosts(num_links, are_apart)
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()
