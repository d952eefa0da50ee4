"""The local cluster as `mcctl cluster` shows it: processes, memory, logs, and what to do where one has ended."""

from pathlib import Path

import msgspec

from daemons.core.units import format_size
from mcctl import exit_codes, render
from mcctl.cluster.http_status import get_status
from mcctl.cluster.process_memory import proportional_bytes
from mcctl.cluster.record import ClusterRecord, DaemonRecord
from mcctl.render import Column
from mcctl.settings import Output


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the cluster."""

    name: str
    pid: int | None
    is_running: bool
    memory_bytes: int
    """Of pages that several map, such as the pool's segments, its share: the sum over all daemons is what they use."""
    log: str


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What up, status and restart print; fields are only ever added."""

    is_running: bool
    is_healthy: bool
    url: str = ""
    master: str = ""
    model: str = ""
    directory: str = ""
    daemons: list[DaemonStatus] = msgspec.field(default_factory=list)
    why: str = ""
    """What is not as it should be."""
    next: str = ""
    """What to type then."""


def show_cluster(output: Output, record: ClusterRecord) -> int:
    """The exit status: 7 where it does not serve, or a daemon has ended."""
    result = _look_at(record)
    columns = [
        Column("daemon", lambda d: d.name),
        Column("pid", lambda d: str(d.pid or "-"), is_number=True),
        Column("state", lambda d: "running" if d.is_running else "ENDED"),
        Column("memory", lambda d: format_size(d.memory_bytes), is_number=True),
        Column("log", lambda d: d.log, extra=1),
    ]
    render.emit(output, result, columns, result.daemons)
    if output == "table":
        render.show_facts(_facts(result, record.tenants))
    return exit_codes.BY_FAMILY["unavailable"] if result.why else exit_codes.OK


def _look_at(record: ClusterRecord) -> ClusterStatus:
    status = get_status(f"{record.url}/health", timeout_s=2.0)
    why, then = _what_is_wrong(record, status)
    return ClusterStatus(
        is_running=record.is_running,
        is_healthy=record.can_serve and status == 200,
        url=record.url,
        master=record.master,
        model=Path(record.model).name,
        directory=record.directory,
        daemons=[_daemon_status(daemon) for daemon in record.daemons],
        why=why,
        next=then,
    )


def _what_is_wrong(record: ClusterRecord, status: int | None) -> tuple[str, str]:
    """Why, and the next command; both empty where all is well."""
    ended = record.ended
    if len(ended) == len(record.daemons):
        return "all daemons have ended", "mcctl cluster up starts a new one"
    if ended:
        why = f"{', '.join(ended)} ended"
        return why, f"mcctl logs {ended[0]} says why; mcctl cluster restart {' '.join(ended)}"
    if status != 200:
        said = "does not answer" if status is None else f"answers {status}"
        return f"{record.url}/health {said}", "mcctl status says why"
    return "", ""


def _daemon_status(daemon: DaemonRecord) -> DaemonStatus:
    process = daemon.process
    return DaemonStatus(
        name=daemon.name,
        pid=process.pid if process else None,
        is_running=process is not None and process.is_alive,
        memory_bytes=proportional_bytes(process.pid) if process else 0,
        log=daemon.log,
    )


def _facts(result: ClusterStatus, tenants: str | None) -> list[tuple[str, str]]:
    total = format_size(sum(daemon.memory_bytes for daemon in result.daemons))
    health = "serves" if result.is_healthy else "does NOT serve"
    facts = [
        ("OpenAI API", f"{result.url}/v1 ({health}, model {result.model})"),
        ("master", result.master),
        ("memory", f"{total} in all, shared pages once"),
        ("page", f"{result.url}/status in a browser"),
        ("logs", f"mcctl logs [DAEMON]; the files are in {result.directory}"),
    ]
    ask = "mcctl request send --prompt 'What is a lighthouse?'"
    if tenants is not None:
        facts.append(("tenants", f"those of {tenants}; mcctl tenant add, then key"))
        ask = f"MCCTL_API_KEY=KEY {ask}"
    if result.is_healthy:
        facts.append(("try", ask))
    if result.why:
        facts += [("why", result.why), ("next", result.next)]
    return facts
