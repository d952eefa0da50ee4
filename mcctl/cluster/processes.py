"""A cluster of real processes on this host's loopback: started, watched, hurt (by tests) and ended without a trace.

    with LocalCluster.temporary(ClusterOptions(model=path)) as cluster:
        httpx.get(cluster.url + "/v1/models")

A temporary cluster ends with the process that made it, however that ends; a persistent one stays until `end_cluster`.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from daemons.client.cluster import ClusterClient
from daemons.core.errors import ConfigError, Conflict, McError, Unavailable
from mcctl import paths
from mcctl.cluster.http_status import get_status
from mcctl.cluster.incarnation import begin_above, keeps_blocks
from mcctl.cluster.plan import (
    ClusterOptions,
    PlannedDaemon,
    plan_cluster,
    to_toml,
)
from mcctl.cluster.process_identity import ProcessIdentity, identify, stop_all
from mcctl.cluster.record import (
    GRACE_S,
    SEGMENTS,
    ClusterRecord,
    DaemonRecord,
    end_cluster,
    persistent_directory,
    read_record,
    remove_unrecorded,
    segment_directory,
    sweep,
    write_record,
)
from mcctl.cluster.room import check_segments
from mcctl.cluster.sigterm import SigtermTrap
from mcctl.cluster.spawning import EXIT_CONFIG, config_path, last_words, log_path, spawn

Progress = Callable[[str], object]
READY_TIMEOUT_S: Final = 300.0
_POLL_S: Final = 0.05


class LocalCluster:
    """Use `temporary` or `persistent`. Names of daemons: mc-master, mc-cachenode, mc-prefill, mc-prefill-2, ..."""

    def __init__(self, options: ClusterOptions, directory: Path, *, is_temporary: bool) -> None:
        self.options = options
        self._directory = directory
        self._is_temporary = is_temporary
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._sigterm = SigtermTrap()
        scratch = self._scratch(options)
        try:
            self.plan = plan_cluster(options, directory, scratch)
            if keeps_blocks(options):
                begin_above(paths.state_dir(), directory / "state")
        except BaseException:
            for path in scratch:
                shutil.rmtree(path, ignore_errors=True)
            raise
        self._planned = {daemon.name: daemon for daemon in self.plan.daemons}
        owner = identify(os.getpid()) if is_temporary else None
        self.record = ClusterRecord(
            directory=str(directory),
            master=self.plan.master,
            events=self.plan.events,
            url=self.plan.url,
            model=str(options.model),
            scratch=[str(path) for path in self.plan.scratch],
            owner=owner,
            segment_directory=str(options.segment_directory) if options.segment_directory else None,
            tenants=str(options.tenants) if options.tenants else None,
            daemons=[
                DaemonRecord(
                    name=d.name, role=d.role, process=None, log=str(self._log_path(d.name))
                )
                for d in self.plan.daemons
            ],
        )
        for daemon in self.plan.daemons:
            for path in self.plan.scratch:
                (path / daemon.node_id).mkdir(mode=0o700)
            self.config_path(daemon.name).write_text(to_toml(daemon.tables), encoding="utf-8")
        write_record(self.record)

    @classmethod
    def temporary(cls, options: ClusterOptions) -> "LocalCluster":
        """Not started: use it in a `with`, or call `start` and `stop`."""
        sweep()
        directory = Path(tempfile.mkdtemp(prefix="cluster-", dir=paths.runtime_dir()))
        try:
            return cls(options, directory, is_temporary=True)
        except BaseException:
            remove_unrecorded(directory)
            raise

    @classmethod
    def persistent(cls, options: ClusterOptions) -> "LocalCluster":
        """Raises Conflict while one runs. What a reboot or a crash left of an old one is removed."""
        sweep()
        directory = persistent_directory()
        directory.mkdir(parents=True, exist_ok=True)
        old = read_record(directory)
        if old is not None:
            if old.is_running:
                raise Conflict(f"a cluster runs at {old.url}; end it with `mcctl cluster down`")
            end_cluster(old)
            directory.mkdir(parents=True, exist_ok=True)
        return cls(options, directory, is_temporary=False)

    @property
    def url(self) -> str:
        """Base of the OpenAI API."""
        return self.plan.url

    @property
    def master(self) -> str:
        return self.plan.master

    @property
    def pids(self) -> dict[str, int]:
        """Of every daemon that was started and not ended by us."""
        return {d.name: d.process.pid for d in self.record.daemons if d.process is not None}

    def config_path(self, name: str) -> Path:
        return config_path(self._directory, name)

    def log(self, name: str) -> str:
        """Everything a daemon has said."""
        return self._log_path(name).read_text(encoding="utf-8", errors="replace")

    def start(
        self, progress: Progress = lambda _: None, *, timeout_s: float = READY_TIMEOUT_S
    ) -> None:
        """Start all and wait until the gateway serves. Whatever goes wrong, nothing is left running."""
        self._sigterm.set()
        try:
            progress(f"starting {len(self.plan.daemons)} daemons")
            for daemon in self.plan.daemons:
                self._spawn(daemon)
            self.wait_ready(progress, timeout_s=timeout_s)
        except BaseException:
            self.stop()
            raise

    def wait_ready(
        self, progress: Progress = lambda _: None, *, timeout_s: float = READY_TIMEOUT_S
    ) -> None:
        """Until every daemon is a live node and the gateway is healthy. A daemon that ended is an error at once."""
        deadline_s = time.monotonic() + timeout_s
        ready: set[str] = set()
        while time.monotonic() < deadline_s:
            self.check_running()
            found = self._ready()
            waiting_for = [d.name for d in self.plan.daemons if d.name not in found]
            if not waiting_for:
                return
            if not found <= ready:
                ready |= found
                progress(
                    f"{len(ready)} of {len(self.plan.daemons)} ready, waiting for {', '.join(waiting_for)}"
                )
            time.sleep(_POLL_S)
        raise Unavailable(
            f"{waiting_for[0]} was not ready within {timeout_s:g} s; its log ends: {self._tail(waiting_for[0])}"
        )

    def check_running(self) -> None:
        """Raises ConfigError or Unavailable with the last words of a daemon that ended by itself."""
        for name, child in self._children.items():
            status = child.poll()
            if status is not None:
                said = self._tail(name)
                if status == EXIT_CONFIG:
                    raise ConfigError(said)
                raise Unavailable(f"{name} ended with status {status}; its log ends: {said}")

    def kill(self, name: str, signum: int = signal.SIGKILL) -> None:
        """Send a signal; SIGKILL also waits until it is gone. Raises ProcessLookupError when it was gone before."""
        child = self._children[name]
        if child.poll() is not None:
            raise ProcessLookupError(f"{name} has ended with status {child.returncode}")
        child.send_signal(signum)
        if signum == signal.SIGKILL:
            child.wait()

    def restart(self, name: str, *, grace_s: float = GRACE_S) -> None:
        """End it if it lives, start it again with the same config. Does not wait until it is ready."""
        process = self._process(name)
        if process is not None:
            stop_all([process], grace_s=grace_s)
        self._reap(name)
        self._spawn(self._planned[name])

    def stop(self, *, grace_s: float = GRACE_S) -> list[str]:
        """End all and remove all files; names of those that had to be killed. No signal cuts it short."""
        self._sigterm.deafen()
        try:
            killed = end_cluster(self.record, grace_s=grace_s)
        finally:
            for name in list(self._children):
                self._reap(name)
            self._sigterm.restore()
        return killed

    def __enter__(self) -> "LocalCluster":
        if not self._children:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _scratch(self, options: ClusterOptions) -> tuple[Path, Path]:
        """Names that `sweep` finds by the cluster's own name, even if we are killed before the record is written."""
        check_segments(options)
        if self._is_temporary:
            sockets = self._directory / "s"
            segments = segment_directory(self._directory)
            for path in (sockets, segments):
                path.mkdir(mode=0o700)
            return sockets, segments
        sockets = Path(tempfile.mkdtemp(prefix="s-", dir=paths.runtime_dir()))
        return sockets, Path(tempfile.mkdtemp(prefix="mooncake-", dir=SEGMENTS))

    def _spawn(self, daemon: PlannedDaemon) -> None:
        child = spawn(self._directory, daemon.name, daemon.role, is_temporary=self._is_temporary)
        self._children[daemon.name] = child
        self._set_process(daemon.name, identify(child.pid))

    def _ready(self) -> set[str]:
        """The daemons that are there; none is asked for before the master answers."""
        try:
            with ClusterClient(self.plan.master, timeout_s=1.0) as client:
                alive = {n.node.node for n in client.nodes().nodes if n.state == "alive"}
        except McError:
            return set()
        found = {d.name for d in self.plan.daemons if d.role == "master" or d.node_id in alive}
        if get_status(f"{self.plan.url}/health", timeout_s=1.0) != 200:
            found -= {d.name for d in self.plan.daemons if d.role == "gateway"}
        return found

    def _tail(self, name: str) -> str:
        return last_words(self._log_path(name))

    def _log_path(self, name: str) -> Path:
        return log_path(self._directory, name)

    def _process(self, name: str) -> ProcessIdentity | None:
        return next(d.process for d in self.record.daemons if d.name == name)

    def _set_process(self, name: str, process: ProcessIdentity | None) -> None:
        daemons = [
            msgspec.structs.replace(d, process=process) if d.name == name else d
            for d in self.record.daemons
        ]
        self.record = msgspec.structs.replace(self.record, daemons=daemons)
        write_record(self.record)

    def _reap(self, name: str) -> None:
        child = self._children.pop(name, None)
        if child is not None:
            child.kill()
            child.wait()
