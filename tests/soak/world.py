"""The pool that is hurt: a master and nodes with memory and SSD, each a process of its own."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kit.daemon import Daemon, free_port

from daemons.client.cluster import ClusterClient
from daemons.core.errors import McError

NUM_NODES = 3
_BEAT_S = 0.2
_SMALL_DISK_BYTES = 320 << 20
"""More than the SSD tier may have."""


class World:
    """All nodes are up when made. `directory` is on a tmpfs, SSDs are on `disk`."""

    def __init__(self, disk: Path, *, segment: str = "48MiB") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mcsoak-", dir="/dev/shm"))
        self.disk = disk
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.small_disk = self._mount_small(NUM_NODES - 1)
        """Of the last node, on which a full disk costs nobody else anything; None where that takes root."""
        self.nodes: list[Daemon] = []
        try:
            self._start(segment)
        except BaseException:
            self.close()
            raise

    def _start(self, segment: str) -> None:
        self.master = Daemon(
            "daemons.mc_master",
            f"node.listen={self.endpoint}",
            f"node.events=tcp://127.0.0.1:{free_port()}",
            "node.metrics=",
            f"node.state_dir={self.state}",
            f"membership.beat_interval_s={_BEAT_S}",
            "pool.replicas=2",
            "pool.rebuild_delay_s=2",
        )
        self.nodes = [self._node(number, segment) for number in range(NUM_NODES)]
        self.heal()

    def ssd(self, number: int) -> Path:
        return self.disk / f"node-{number}"

    @property
    def state(self) -> Path:
        """What the master keeps on disk."""
        return self.directory / "state"

    def index(self, number: int) -> Path:
        """What the node knows its memory by."""
        return self.directory / f"shm-{number}" / f"mooncake-{os.getuid()}" / f"node-{number}.index"

    def heal(self, timeout_s: float = 240.0) -> None:
        """Everything runs again, and everybody has joined. Raises AssertionError when that takes too long."""
        for daemon in (self.master, *self.nodes):
            daemon.send(signal.SIGCONT)
        self.wait_until(self._is_whole, timeout_s, "all nodes alive")

    def _is_whole(self) -> bool:
        """Starts what has ended, as systemd would."""
        for daemon in (self.master, *self.nodes):
            if daemon.process.poll() is not None:
                daemon.start()
        return self._num_alive() == NUM_NODES

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
        for daemon in (*self.nodes, *([self.master] if hasattr(self, "master") else ())):
            daemon.stop()
        if self.small_disk is not None:
            subprocess.run(["umount", "--lazy", self.small_disk], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _mount_small(self, number: int) -> Path | None:
        path = self.ssd(number)
        path.mkdir(parents=True)
        options = ["-t", "tmpfs", "-o", f"size={_SMALL_DISK_BYTES}", "tmpfs", str(path)]
        mounted = subprocess.run(["mount", *options], check=False, capture_output=True)
        return None if mounted.returncode else path

    def _node(self, number: int, segment: str) -> Daemon:
        return Daemon(
            "daemons.mc_cachenode",
            f"node.id=node-{number}",
            f"node.domain=host-{number}",
            f"node.listen=tcp://127.0.0.1:{free_port()}",
            "node.metrics=",
            f"node.state_dir={self.directory / f'state-{number}'}",
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
    path = largest_bucket(directory)
    if path is None:
        return False
    offset = offset_seed % path.stat().st_size
    fd = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, offset)
        os.pwrite(fd, bytes([byte[0] ^ 0x40]) if byte else b"\1", offset)
    finally:
        os.close(fd)
    return True


def cut(path: Path | None, num_bytes: int) -> bool:
    """Take these bytes off the end of a file that nobody writes. False when there is no such file."""
    if path is None or not path.is_file():
        return False
    os.truncate(path, max(0, path.stat().st_size - num_bytes))
    return True


def largest_bucket(directory: Path) -> Path | None:
    files = [
        each for each in directory.rglob("*") if each.is_file() and each.stat().st_size > 1 << 16
    ]
    return max(files, key=lambda each: each.stat().st_size, default=None)
