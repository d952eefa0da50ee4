"""The pool that is hurt: a master and nodes with memory and SSD, each a process of its own."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kit.daemon import Daemon, free_port

from daemons.client.cluster import ClusterClient
from daemons.core.errors import McError

NUM_NODES = 3
_BEAT_S = 0.2


class World:
    """All nodes are up when made. `directory` is on a tmpfs, SSDs are on `disk`."""

    def __init__(self, disk: Path, *, segment: str = "48MiB") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mcsoak-", dir="/dev/shm"))
        self.disk = disk
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.master = Daemon(
            "daemons.mc_master",
            f"node.listen={self.endpoint}",
            f"node.events=tcp://127.0.0.1:{free_port()}",
            "node.metrics=",
            f"node.state_dir={self.directory / 'state'}",
            f"membership.beat_interval_s={_BEAT_S}",
            "pool.replicas=2",
            "pool.rebuild_delay_s=2",
        )
        self.master.find(r"(ready)")
        self.nodes = [self._node(number, segment) for number in range(NUM_NODES)]
        for node in self.nodes:
            node.find(r"(joined) master")

    def ssd(self, number: int) -> Path:
        return self.disk / f"node-{number}"

    def heal(self, timeout_s: float = 60.0) -> None:
        """Everything runs again, and everybody has joined. Raises AssertionError when that takes too long."""
        for daemon in (self.master, *self.nodes):
            if daemon.process.poll() is None:
                daemon.send(signal.SIGCONT)
            else:
                daemon.start()
        self.wait_until(lambda: self._num_alive() == NUM_NODES, timeout_s, "all nodes alive")

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not is_true():
            assert time.monotonic() < deadline_s, (
                f"{what}: not within {timeout_s:g} s\n{self.logs()}"
            )
            time.sleep(0.1)

    def logs(self) -> str:
        daemons = {"master": self.master, **{f"node-{i}": n for i, n in enumerate(self.nodes)}}
        return "\n".join(
            f"{name}: {line.rstrip()}"
            for name, daemon in daemons.items()
            for line in daemon.lines[-30:]
        )

    def close(self) -> None:
        for daemon in (*self.nodes, self.master):
            daemon.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _node(self, number: int, segment: str) -> Daemon:
        return Daemon(
            "daemons.mc_cachenode",
            f"node.id=node-{number}",
            f"node.domain=host-{number}",
            f"node.listen=tcp://127.0.0.1:{free_port()}",
            "node.metrics=",
            f"master.endpoint={self.endpoint}",
            f"segment.directory={self.directory / f'shm-{number}'}",
            f"segment.size={segment}",
            f"transfer.unix_dir={self.directory / f'unix-{number}'}",
            f"ssd.directory={self.ssd(number)}",
            "ssd.capacity=256MiB",
            "ssd.bucket=16MiB",
            f"ssd.flush={'write-through' if number == 0 else 'write-back'}",
        )

    def _num_alive(self) -> int:
        try:
            with ClusterClient(self.endpoint, 1.0) as client:
                return sum(node.state == "alive" for node in client.nodes().nodes)
        except McError:
            return 0


def damage(directory: Path, offset_seed: int) -> bool:
    """Flip one byte of the largest bucket. False when there is none."""
    files = [
        path for path in directory.rglob("*") if path.is_file() and path.stat().st_size > 1 << 16
    ]
    if not files:
        return False
    path = max(files, key=lambda each: each.stat().st_size)
    offset = offset_seed % path.stat().st_size
    fd = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, offset)
        os.pwrite(fd, bytes([byte[0] ^ 0x40]) if byte else b"\1", offset)
    finally:
        os.close(fd)
    return True
