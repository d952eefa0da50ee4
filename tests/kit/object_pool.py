"""A master and cache nodes as processes that tests kill, stop and start again; their memory outlives them."""

import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from daemons.client.cluster import ClusterClient
from daemons.core.errors import McError
from daemons.protocol.node import ListedNode
from kit.daemon import Daemon, free_port, wait_for


class ObjectPool:
    """Nodes are numbered from 0. Started and joined when made; where that fails none is left."""

    def __init__(
        self,
        num_nodes: int,
        *,
        started: int | None = None,
        segment: str = "64MiB",
        master: Sequence[str] = (),
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mcobj-", dir="/dev/shm"))
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self._events = f"tcp://127.0.0.1:{free_port()}"
        self._controls = [f"tcp://127.0.0.1:{free_port()}" for _ in range(num_nodes)]
        self._segment = segment
        self._master_settings = master
        self.daemons: dict[str, Daemon] = {}
        try:
            self.start_master()
            started = num_nodes if started is None else started
            for number in range(started):
                self.start_node(number)
            self.wait_joined(started)
        except BaseException:
            self.close()
            raise

    def start_master(self) -> None:
        self.daemons["master"] = Daemon(
            "daemons.mc_master",
            f"node.listen={self.endpoint}",
            f"node.events={self._events}",
            "node.metrics=",
            f"node.state_dir={self.directory / 'state'}",
            *self._master_settings,
        )

    def start_node(self, number: int, *settings: str) -> None:
        self.daemons[f"node-{number}"] = Daemon(
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

    def control(self, number: int) -> str:
        """Of a node; it is the same in all its lives."""
        return self._controls[number]

    def kill(self, name: str) -> None:
        self.daemons[name].kill()

    def signal(self, name: str, number: signal.Signals) -> None:
        self.daemons[name].send(number)

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
        wait_for(lambda: self.num_alive() == num_nodes, 60.0, what="the nodes")

    def said(self) -> str:
        return "".join(daemon.said() for daemon in self.daemons.values())

    def close(self) -> None:
        for daemon in self.daemons.values():
            daemon.kill()
        shutil.rmtree(self.directory)
