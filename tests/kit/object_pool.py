"""A master and cache nodes as processes that tests kill, stop and start again; their memory outlives them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from daemons.client.cluster import ClusterClient
from daemons.core.errors import McError
from daemons.protocol.node import ListedNode


def wait_for(is_true: Callable[[], object], timeout_s: float = 15.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline_s, "timed out"
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ObjectPool:
    """Nodes are numbered from 0. Started and joined when made."""

    def __init__(
        self,
        num_nodes: int,
        *,
        started: int | None = None,
        segment: str = "64MiB",
        master: Sequence[str] = (),
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mcobj-", dir="/dev/shm"))
        self.endpoint = f"tcp://127.0.0.1:{_free_port()}"
        self._events = f"tcp://127.0.0.1:{_free_port()}"
        self._controls = [f"tcp://127.0.0.1:{_free_port()}" for _ in range(num_nodes)]
        self._segment = segment
        self._master_settings = master
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start_master()
        started = num_nodes if started is None else started
        for number in range(started):
            self.start_node(number)
        self.wait_joined(started)

    def start_master(self) -> None:
        self._run(
            "master",
            "daemons.mc_master",
            f"node.listen={self.endpoint}",
            f"node.events={self._events}",
            "node.metrics=",
            f"node.state_dir={self.directory / 'state'}",
            *self._master_settings,
        )

    def start_node(self, number: int, *settings: str) -> None:
        self._run(
            f"node-{number}",
            "daemons.mc_cachenode",
            f"node.id=node-{number}",
            f"node.listen={self._controls[number]}",
            "node.metrics=127.0.0.1:0",
            f"master.endpoint={self.endpoint}",
            f"segment.directory={self.directory / f'shm-{number}'}",
            f"transfer.unix_dir={self.directory}",
            f"segment.size={self._segment}",
            *settings,
        )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait(10)

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def nodes(self) -> list[ListedNode]:
        with ClusterClient(self.endpoint, 1.0) as client:
            return client.nodes().nodes

    def num_alive(self) -> int:
        try:
            return sum(each.state == "alive" for each in self.nodes())
        except McError:
            return 0

    def wait_joined(self, num_nodes: int) -> None:
        """Exactly so many are alive."""
        wait_for(lambda: self.num_alive() == num_nodes)

    def said(self) -> str:
        return "\n".join(log.read_text() for log in self.directory.glob("*.log"))

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(10)
        shutil.rmtree(self.directory)

    def _run(self, name: str, module: str, *settings: str) -> None:
        arguments = [argument for setting in settings for argument in ("--set", setting)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        guard = [sys.executable, "-m", "mcctl.die_with_parent", str(os.getpid())]
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*guard, sys.executable, "-m", module, *arguments], stderr=log, env=environment
            )
