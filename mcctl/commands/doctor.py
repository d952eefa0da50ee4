"""mcctl doctor: everything that would keep this host from serving well, and the fix."""

import os
import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Final

import typer

from daemons.client.cluster import ClusterClient
from daemons.config.common import topology_file
from daemons.core.errors import ConfigError, McError
from daemons.protocol.address import address_of
from mcctl import render
from mcctl.commands import new_app
from mcctl.doctor.cluster import check_cluster
from mcctl.doctor.configs import check_configs, load_all
from mcctl.doctor.finding import SEVERITIES, Finding
from mcctl.doctor.host import Host, read_host
from mcctl.doctor.loaded import Loaded
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import Settings, settings_of

app = new_app()

_INSTALLED: Final = Path("/etc/mooncake")


@app.command()
@prints({"findings": list[Finding]})
def doctor(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help=f"Config files of this host; those in {_INSTALLED} that units read."),
    ] = None,
    no_cluster: Annotated[
        bool, typer.Option("--no-cluster", help="Do not ask the master: it is not up yet.")
    ] = False,
) -> None:
    """Check configs together, memory, ports, secrets, models, NICs, clock and cluster. Exits with 78 on an error.

    \b
    Example: mcctl doctor
    Example: mcctl doctor --no-cluster configs/mc-master.toml
    """
    paths = files or of_units(_INSTALLED)
    loaded, findings = load_all(paths)
    host = read_host()
    findings += check_configs(loaded, host)
    findings += check_clock(host)
    findings += _check_topology(loaded)
    if not paths:
        findings.append(_no_configs())
    if not no_cluster:
        findings += _check_cluster(settings_of(context))
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    output = settings_of(context).output
    if output == "table" and not findings:
        render.emit_line("Nothing to complain about.")
    else:
        render.emit(output, {"findings": findings}, _COLUMNS, findings)
    count = Counter(finding.severity for finding in findings)
    if count["error"]:
        first = next(finding for finding in findings if finding.severity == "error")
        raise ConfigError(f"{count['error']} error(s); the first: {first.what}: {first.problem}")


def of_units(directory: Path) -> list[Path]:
    """The master's and those of instances: without a letter the others are what install.sh shows as defaults."""
    return sorted([*directory.glob("mc-master.toml"), *directory.glob("mc-*@*.toml")])


def check_clock(host: Host) -> Iterator[Finding]:
    """Grants and tombstones carry times."""
    if host.is_clock_synchronized is False:
        yield Finding(
            severity="warning",
            area="clock",
            what="clock",
            problem="the kernel says that it is not synchronized",
            fix="run chrony or systemd-timesyncd: timedatectl set-ntp true",
        )


def _check_topology(loaded: Sequence[Loaded]) -> Iterator[Finding]:
    from daemons.transfer.topology import discover
    from daemons.transfer.topology_check import check
    from daemons.transfer.transports.rdma import why_unavailable

    sections = [section for item in loaded if (section := getattr(item.config, "transfer", None))]
    try:
        topology = discover(override=next(filter(None, map(topology_file, sections)), None))
    except ConfigError as error:
        yield Finding(
            severity="error",
            area="topology",
            what="transfer.topology",
            problem=error.message,
            fix="mend the file, or leave it out where the kernel is right",
        )
        return
    names_rdma = any("rdma" in section.transports for section in sections)
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    is_bound = names_rdma and limit != resource.RLIM_INFINITY and os.geteuid() != 0
    for found in check(
        topology,
        no_verbs_reason=(why_unavailable() or "") if names_rdma else "",
        memlock_bytes=limit if is_bound else None,
        wants_rdma=any(section.transports == ["rdma"] for section in sections),
    ):
        yield Finding(
            severity=found.severity,
            area="topology",
            what=found.device,
            problem=found.problem,
            fix=found.fix,
        )


def _check_cluster(settings: Settings) -> list[Finding]:
    try:
        with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
            is_local = settings.local_cluster is not None
            return list(check_cluster(client.nodes(), is_local=is_local, own_version=_version()))
    except McError as error:
        return [
            Finding(
                severity="warning",
                area="cluster",
                what=address_of(settings.master),
                problem=error.message,
                fix="start mc-master, name it with --endpoint, or leave it out: --no-cluster",
            )
        ]


def _version() -> str:
    try:
        return version("mooncake-mc")
    except PackageNotFoundError:
        return ""


def _no_configs() -> Finding:
    return Finding(
        severity="info",
        area="config",
        what=str(_INSTALLED),
        problem="no config files there, so none were checked",
        fix="name them: mcctl doctor FILE ...",
    )


_COLUMNS: Final = [
    Column("severity", lambda finding: finding.severity),
    Column("area", lambda finding: finding.area),
    Column("what", lambda finding: finding.what),
    Column("problem", lambda finding: finding.problem),
    Column("fix", lambda finding: finding.fix),
]
