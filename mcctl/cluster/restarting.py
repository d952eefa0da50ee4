"""Single daemons of the cluster that `mcctl cluster up` keeps, ended if they live and started again where they were."""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from daemons.client.cluster import ClusterClient
from daemons.core.errors import ConfigError, McError, Unavailable
from mcctl.cluster.http_status import get_status
from mcctl.cluster.process_identity import identify, stop_all
from mcctl.cluster.record import ClusterRecord, DaemonRecord, write_record
from mcctl.cluster.spawning import EXIT_CONFIG, last_words, spawn

Progress = Callable[[str], object]
_ORDER: Final = ("master", "cachenode", "prefill", "decode", "gateway")
_POLL_S: Final = 0.05
_ASK_S: Final = 1.0
_SERVES_WITHIN_S: Final = 10.0
"""A gateway hears once a second what its master has met."""


class Restart:
    """Of the daemons of these names. The record is written anew with each that was started: whoever finds it can end
    all of them.
    """

    def __init__(self, record: ClusterRecord, names: Sequence[str]) -> None:
        self.record = record
        self._chosen = sorted(
            (d for d in record.daemons if d.name in names), key=lambda d: _ORDER.index(d.role)
        )
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: dict[str, int] = {}

    def run(self, progress: Progress, *, grace_s: float, timeout_s: float) -> None:
        """Each drains first. Returns once all of them serve; raises ConfigError or Unavailable with the last words of
        one that ended instead, or is not ready in time, and before anything where there is no master to join.
        """
        self._check_master()
        self._seen = _lives(self.record)
        names = ", ".join(daemon.name for daemon in self._chosen)
        progress(f"stopping {names}")
        processes = [d.process for d in reversed(self._chosen) if d.process is not None]
        stop_all(processes, grace_s=grace_s)
        for daemon in self._chosen:
            self._start(daemon)
        progress(f"waiting for {names}")
        deadline_s = time.monotonic() + timeout_s
        while waiting := self._not_ready():
            self._check_running()
            if time.monotonic() >= deadline_s:
                raise Unavailable(f"{waiting[0]} is not ready after {timeout_s:g} s: mcctl logs")
            time.sleep(_POLL_S)
        self.await_answers()

    def await_answers(self, timeout_s: float = _SERVES_WITHIN_S) -> None:
        """Until the gateway says that it serves, where the daemons are there for it; others may keep it from that."""
        deadline_s = time.monotonic() + timeout_s
        while self.record.can_serve and time.monotonic() < deadline_s:
            if get_status(f"{self.record.url}/health", timeout_s=_ASK_S) == 200:
                return
            time.sleep(_POLL_S)

    def _check_master(self) -> None:
        for daemon in self.record.daemons:
            is_up = daemon.process is not None and daemon.process.is_alive
            if daemon.role == "master" and not is_up and daemon not in self._chosen:
                names = " ".join(each.name for each in self._chosen)
                raise Unavailable(
                    f"{daemon.name} has ended, and nothing serves without it: "
                    f"`mcctl cluster restart {daemon.name} {names}`"
                )

    def _start(self, daemon: DaemonRecord) -> None:
        child = spawn(Path(self.record.directory), daemon.name, daemon.role, is_temporary=False)
        self._children[daemon.name] = child
        started = msgspec.structs.replace(daemon, process=identify(child.pid))
        daemons = [started if d.name == daemon.name else d for d in self.record.daemons]
        self.record = msgspec.structs.replace(self.record, daemons=daemons)
        write_record(self.record)

    def _check_running(self) -> None:
        for daemon in self._chosen:
            status = self._children[daemon.name].poll()
            if status is not None:
                said = last_words(Path(daemon.log))
                if status == EXIT_CONFIG:
                    raise ConfigError(said)
                raise Unavailable(
                    f"{daemon.name} ended again, with status {status}; its log ends: {said}"
                )

    def _not_ready(self) -> list[str]:
        """Those of the chosen whose new life is not heard of, and whom a new master has not met."""
        lives = _lives(self.record)
        chosen = {d.name for d in self._chosen}
        met = {
            d.name
            for d in self.record.daemons
            if "mc-master" in chosen and d.process is not None and d.process.is_alive
        }
        return sorted(
            {name for name in chosen if lives.get(name) in (None, self._seen.get(name))}
            | {name for name in met if name not in lives}
        )


def _lives(record: ClusterRecord) -> dict[str, int]:
    """Which life of each daemon serves now; a gateway also answers over HTTP."""
    try:
        with ClusterClient(record.master, timeout_s=_ASK_S) as client:
            listed = client.nodes()
    except McError:
        return {}
    lives: dict[str, int] = {"mc-master": listed.incarnation}
    has_http = get_status(f"{record.url}/health", timeout_s=_ASK_S) is not None
    for node in listed.nodes:
        if node.state == "alive" and (has_http or node.node.role != "gateway"):
            lives[f"mc-{node.node.node}"] = node.node.epoch
    return lives
