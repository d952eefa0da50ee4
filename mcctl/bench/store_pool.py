"""A master and cache nodes of a benchmark's own, on loopback; they end with this process, however that ends."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from daemons.client.cluster import ClusterClient
from daemons.core.errors import McError, Unavailable
from mcctl import paths
from mcctl.bench.patience import PATIENCE_S
from mcctl.cluster.die_with_parent import tied_to_us
from mcctl.cluster.ports import ReservedPorts
from mcctl.cluster.spawning import MASTER_ENVIRONMENT

_ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class StorePool:
    """Listens and has joined when entered."""

    def __init__(self, num_nodes: int, segment: str) -> None:
        self._ports = ReservedPorts()
        self.master = f"tcp://127.0.0.1:{self._ports.take()}"
        self._num_nodes = num_nodes
        self._sockets = Path(tempfile.mkdtemp(prefix="store-", dir=paths.runtime_dir()))
        self._memory = Path(tempfile.mkdtemp(prefix="mooncake-store-", dir="/dev/shm"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._commands: list[tuple[str, list[str]]] = [
            (
                "daemons.mc_master",
                [
                    f"node.listen={self.master}",
                    f"node.events=tcp://127.0.0.1:{self._ports.take()}",
                    "node.metrics=",
                    f"node.state_dir={self._sockets / 'state'}",
                ],
            )
        ]
        for number in range(num_nodes):
            settings = [
                f"node.id=cachenode-{number}",
                f"node.listen=tcp://127.0.0.1:{self._ports.take()}",
                f"node.metrics=127.0.0.1:{self._ports.take()}",
                f"master.endpoint={self.master}",
                f"transfer.unix_dir={self._sockets}",
                f"segment.directory={self._memory}",
                f"segment.size={segment}",
                "segment.prefault=true",
            ]
            self._commands.append(("daemons.mc_cachenode", settings))

    @property
    def master_pid(self) -> int:
        """Of the master, once entered."""
        return self._processes[0].pid

    def __enter__(self) -> Self:
        try:
            for module, settings in self._commands:
                self._start(module, settings)
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _start(self, module: str, settings: list[str]) -> None:
        flags = [word for setting in settings for word in ("--set", setting)]
        log = self._sockets / f"{len(self._processes)}.log"
        own = MASTER_ENVIRONMENT if module == "daemons.mc_master" else {}
        with log.open("wb") as file:
            process = subprocess.Popen(
                tied_to_us([sys.executable, "-m", module, *flags]),
                stdin=subprocess.DEVNULL,
                stderr=file,
                env=os.environ | _ENVIRONMENT | own,
            )
        self._processes.append(process)

    def _wait(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            for number, process in enumerate(self._processes):
                if process.poll() is not None:
                    said = (self._sockets / f"{number}.log").read_text(errors="replace")
                    raise Unavailable(f"a daemon of the benchmark ended: {said.strip()[-500:]}")
            try:
                with ClusterClient(self.master, 1.0) as client:
                    if len(client.nodes().nodes) == self._num_nodes:
                        return
            except McError:
                pass
            time.sleep(0.05)
        raise Unavailable(f"the daemons of the benchmark were not ready within {PATIENCE_S:g} s")

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._sockets, ignore_errors=True)
        shutil.rmtree(self._memory, ignore_errors=True)
