"""The record of a local cluster: written before its first process starts, so that whoever finds it can end them all."""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from daemons.core.errors import NotFound
from daemons.protocol.base import MALFORMED
from mcctl import paths
from mcctl.cluster.process_identity import ProcessIdentity, stop_all

Role = Literal["master", "cachenode", "prefill", "decode", "gateway"]
SEGMENTS: Final = Path("/dev/shm")
RECORD_NAME: Final = "cluster.json"
GRACE_S: Final = 5.0
"""How long a daemon may drain before it is killed."""
_RECORD_DUE_S: Final = 60.0
"""A directory without a record is younger than this, or nobody's."""


class DaemonRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the cluster."""

    name: str
    role: Role
    process: ProcessIdentity | None
    log: str


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to use a cluster and to end it."""

    directory: str
    master: str
    events: str
    url: str
    model: str
    scratch: list[str]
    """Directories outside `directory` that go with it: sockets, segments."""
    owner: ProcessIdentity | None
    """The command that the cluster ends with; None: it stays until `mcctl cluster down`."""
    segment_directory: str | None = None
    """The user's own, whose files stay; None: in `scratch`."""
    daemons: list[DaemonRecord]
    tenants: str | None = None
    """The file of its gateway's tenants, the user's own; None: it has none, anybody may ask."""

    @property
    def is_running(self) -> bool:
        return any(d.process is not None and d.process.is_alive for d in self.daemons)

    @property
    def ended(self) -> list[str]:
        """Names of the daemons whose process is gone."""
        return [d.name for d in self.daemons if d.process is None or not d.process.is_alive]

    @property
    def can_serve(self) -> bool:
        """Of each role that an answer needs one process lives; without cache nodes prompts are computed."""
        living = {d.role for d in self.daemons if d.process is not None and d.process.is_alive}
        return living >= {"master", "prefill", "decode", "gateway"}


def find_daemons(record: ClusterRecord, names: Sequence[str]) -> list[DaemonRecord]:
    """decode for all of a role, decode-2, mc-decode-2; raises NotFound for one that is not there. No names: all."""
    if not names:
        return record.daemons
    chosen: list[DaemonRecord] = []
    for name in names:
        plain = name.removeprefix("mc-")
        found = [d for d in record.daemons if plain in (d.name.removeprefix("mc-"), d.role)]
        exact = [d for d in found if d.name == f"mc-{plain}" and plain != d.role]
        if not found:
            there = ", ".join(daemon.name for daemon in record.daemons)
            raise NotFound(f"no daemon {name} in the local cluster; there are: {there}")
        chosen += exact or found
    return list({daemon.name: daemon for daemon in chosen}.values())


def persistent_directory() -> Path:
    """Home of the one cluster that `mcctl cluster up` keeps."""
    return paths.state_dir() / "cluster"


def write_record(record: ClusterRecord) -> None:
    """Atomic: a reader sees the old one or the new one."""
    path = Path(record.directory) / RECORD_NAME
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2))
    draft.replace(path)


def read_record(directory: Path) -> ClusterRecord | None:
    """None where there is none, or none that can be read (another release's)."""
    try:
        return msgspec.json.decode((directory / RECORD_NAME).read_bytes(), type=ClusterRecord)
    except (OSError, *MALFORMED):
        return None


def running_record() -> ClusterRecord | None:
    """The persistent cluster, if any of its processes lives."""
    record = read_record(persistent_directory())
    return record if record is not None and record.is_running else None


def end_cluster(record: ClusterRecord, *, grace_s: float = GRACE_S) -> list[str]:
    """Stop every process and remove every file; names of the daemons that had to be killed.

    The gateway goes first, so that it answers what it can; the master last, so that nodes can say goodbye.
    """
    waves: tuple[tuple[Role, ...], ...] = (
        ("gateway",),
        ("prefill", "decode"),
        ("cachenode",),
        ("master",),
    )
    names = {d.process: d.name for d in record.daemons if d.process is not None}
    killed: list[str] = []
    for roles in waves:
        wave = [d.process for d in record.daemons if d.role in roles and d.process is not None]
        killed += [names[process] for process in stop_all(wave, grace_s=grace_s)]
    remove_files(record)
    return killed


def remove_files(record: ClusterRecord) -> None:
    """The record itself goes last: until then a second try finds it."""
    for path in record.scratch:
        shutil.rmtree(path, ignore_errors=True)
    directory = Path(record.directory)
    for child in directory.glob("*") if directory.is_dir() else ():
        if child.name == RECORD_NAME:
            continue
        if child.is_dir():
            shutil.rmtree(child, ignore_errors=True)
        else:
            child.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def segment_directory(directory: Path) -> Path:
    """Where a temporary cluster keeps its segments."""
    return SEGMENTS / f"mooncake-{os.getuid()}-{directory.name}"


def remove_unrecorded(directory: Path) -> None:
    """All of a temporary cluster that has no processes."""
    shutil.rmtree(segment_directory(directory), ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def sweep() -> list[str]:
    """End clusters whose command was killed before it could; their directories."""
    swept = []
    for directory in sorted(paths.runtime_dir().glob("cluster-*")):
        record = read_record(directory)
        if record is None:
            is_stale = time.time() - directory.stat().st_mtime > _RECORD_DUE_S
        else:
            is_stale = record.owner is not None and not record.owner.is_alive
        if is_stale:
            if record is not None:
                end_cluster(record, grace_s=0.5)
            remove_unrecorded(directory)
            swept.append(str(directory))
    return swept
