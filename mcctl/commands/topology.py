"""mcctl topology: where everything is, what this host has for moving bytes, and how fast its paths are."""

import os
import resource
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.core.errors import ConfigError, Unavailable
from daemons.core.ids import HostId
from daemons.core.units import format_count, format_size
from daemons.protocol.address import address_of
from daemons.protocol.node import ListedNode, ListNodesReply, NodeDescription
from mcctl import render
from mcctl.commands import new_app
from mcctl.commands.node import memory_text
from mcctl.output_schema import Shape, prints
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.watching import watchable

if TYPE_CHECKING:
    from daemons.transfer.hardware import Topology

# The transfer package takes 0.1 s to import and `show` needs none of it: the verbs that do import it.

app = new_app()

_Sysfs = Annotated[
    Path, typer.Option(help="Where sysfs is, or a copy of another host's.", metavar="DIR")
]
_Override = Annotated[
    Path | None,
    typer.Option(help="TOML file that corrects or ignores devices.", metavar="FILE"),
]
_SYSFS = Path("/sys")


def _discovered() -> Shape:
    from daemons.transfer.hardware import Topology

    return Topology


def _checked() -> Shape:
    from daemons.transfer.topology_check import Finding

    return {"findings": list[Finding]}


def _probed() -> Shape:
    from mcctl.topology_probe import ProbedPath

    return {"paths": list[ProbedPath], "warnings": list[str]}


@app.callback()
def _noun() -> None:
    """Hosts, daemons, segments, devices and models as a tree."""


class ShownHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host of `topology show`; `master` where it runs there."""

    host_id: HostId
    host: str
    master: NodeDescription | None
    nodes: list[ListedNode]


@app.command()
@prints({"incarnation": int, "hosts": list[ShownHost]})
@watchable
def show(context: typer.Context) -> None:
    """Hosts, their daemons, segments, models and data paths.

    \b
    Example: mcctl topology show
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        reply = client.nodes()
    hosts = _by_host(reply)
    match settings.output:
        case "json":
            render.emit_json(_json(reply, hosts))
        case "plain":
            for nodes in hosts.values():
                for node in nodes:
                    render.emit_line(
                        f"{node.node.host}\t{node.node.node}\t{node.node.role}\t{node.state}"
                    )
        case "table":
            render.show_tree(_tree(reply, hosts))


@app.command()
@prints(_discovered)
def discover(context: typer.Context, sysfs: _Sysfs = _SYSFS, override: _Override = None) -> None:
    """This host's NICs and GPUs, and which are near which memory.

    \b
    Example: mcctl topology discover --override topology.toml
    """
    from mcctl.views.topology import MATRIX_COLUMNS, matrix_rows, tree

    output = settings_of(context).output
    topology = _discover(sysfs, override)
    if output == "table":
        render.show_tree(tree(topology, os.uname().nodename if sysfs == _SYSFS else str(sysfs)))
    render.emit(output, topology, MATRIX_COLUMNS, matrix_rows(topology))


@app.command()
@prints(_checked)
def check(
    context: typer.Context,
    sysfs: _Sysfs = _SYSFS,
    override: _Override = None,
    rdma: Annotated[
        bool, typer.Option("--rdma", help="RDMA is wanted: its absence is an error.")
    ] = False,
) -> None:
    """What is wrong with this host's data paths, and how to mend it. Exits with 78 when there is an error.

    \b
    Example: mcctl topology check --rdma
    """
    from daemons.transfer.topology_check import check as find

    output = settings_of(context).output
    findings = find(
        _discover(sysfs, override),
        # What this host allows says nothing about the host that a copy was taken from.
        no_verbs_reason=_why_no_verbs() if sysfs == _SYSFS else "",
        memlock_bytes=_memlock_bytes() if sysfs == _SYSFS else None,
        wants_rdma=rdma,
    )
    columns = [
        Column("severity", lambda f: f.severity),
        Column("device", lambda f: f.device),
        Column("problem", lambda f: f.problem),
        Column("fix", lambda f: f.fix),
    ]
    if output == "table" and not findings:
        render.emit_line("Nothing to complain about.")
    else:
        render.emit(output, {"findings": findings}, columns, findings)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise ConfigError(
            f"{len(errors)} error(s); the first: {errors[0].device}: {errors[0].problem}"
        )


@app.command()
@prints(_probed)
def probe(
    context: typer.Context,
    from_here: Annotated[
        bool, typer.Option("--from-here", help="Only from this host, not between the nodes.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write a heat map: .svg, or .png.", metavar="FILE")
    ] = None,
) -> None:
    """Measure latency and bandwidth of every data path. From this host to each node, and between the nodes.

    \b
    Example: mcctl topology probe --plot paths.svg
    """
    from mcctl.topology_probe import ProbedPath, probe_all
    from mcctl.views.plot_file import check_plot, write_plot
    from mcctl.views.topology import PATH_COLUMNS, matrix_table
    from mcctl.views.topology_plot import svg

    if plot is not None:
        check_plot(plot)
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        nodes = [n for n in client.nodes().nodes if n.node.data is not None and n.state == "alive"]
    paths: list[ProbedPath] = []
    with render.progress(f"measuring the paths of {len(nodes)} nodes") as say:
        for path in probe_all(nodes, from_here_only=from_here, key_file=settings.key_file):
            paths.append(path)
            say(f"{path.source} -> {path.target}")
    warnings = [warning for path in paths for warning in path.warnings]
    if settings.output == "table":
        columns, rows = matrix_table(paths)
        render.show_table("GB/s, latency, transport; a row reads from a column", columns, rows)
        for warning in warnings:
            render.complain(f"warning: {warning}")
    else:
        render.emit(settings.output, {"paths": paths, "warnings": warnings}, PATH_COLUMNS, paths)
    if plot is not None:
        write_plot(plot, svg(paths))
    failed = [path for path in paths if path.error]
    if failed:
        first = f"{failed[0].source} -> {failed[0].target}: {failed[0].error}"
        raise Unavailable(f"{len(failed)} of {len(paths)} paths could not be measured; {first}")


def _discover(sysfs: Path, override: Path | None) -> "Topology":
    from daemons.transfer.topology import discover as read

    if not sysfs.is_dir():
        raise ConfigError(f"--sysfs {sysfs}: no such directory")
    if override is not None and not override.exists():
        raise ConfigError(f"--override {override}: no such file; mcctl(1) says what it holds")
    return read(sysfs, override)


def _why_no_verbs() -> str:
    from daemons.transfer.transports.rdma import why_unavailable

    return why_unavailable() or ""


def _memlock_bytes() -> int | None:
    """What a shell of this user may lock; root is not held to it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY or os.geteuid() == 0 else limit


def _by_host(reply: ListNodesReply) -> dict[HostId, list[ListedNode]]:
    hosts: dict[HostId, list[ListedNode]] = defaultdict(list)
    hosts[reply.master.host_id] = []
    for node in reply.nodes:
        hosts[node.node.host_id].append(node)
    return dict(hosts)


def _json(reply: ListNodesReply, hosts: dict[HostId, list[ListedNode]]) -> dict[str, Any]:
    return {
        "incarnation": reply.incarnation,
        "hosts": [
            ShownHost(
                host_id=host_id,
                host=nodes[0].node.host if nodes else reply.master.host,
                master=reply.master if host_id == reply.master.host_id else None,
                nodes=nodes,
            )
            for host_id, nodes in hosts.items()
        ],
    }


def _tree(reply: ListNodesReply, hosts: dict[HostId, list[ListedNode]]) -> render.Branch:
    root = render.Branch(f"cluster of {reply.master.control} (incarnation {reply.incarnation})")
    for host_id, nodes in hosts.items():
        name = nodes[0].node.host if nodes else reply.master.host
        host = root.add(f"host {name}", f"id {host_id}")
        if host_id == reply.master.host_id:
            host.add(
                f"mc-master {reply.master.node}", f"pid {reply.master.pid}, {reply.master.control}"
            )
        for device in dict.fromkeys(line for node in nodes for line in node.node.devices):
            name, _, remark = device.partition(": ")
            host.add(name, remark)
        for node in nodes:
            _add_node(host, node)
    return root


def _add_node(host: render.Branch, node: ListedNode) -> None:
    said = node.node
    branch = host.add(
        f"mc-{said.role} {said.node}", f"{node.state}, pid {said.pid}, {address_of(said.control)}"
    )
    for segment in said.segments:
        size = format_size(segment.capacity_bytes)
        if len(said.segments) == 1:
            size = f"{format_size(node.used_bytes)} of {size} used, {format_count(node.num_blocks, 'block')}"
        branch.add(f"segment {segment.number}", f"{size}, {segment.path}")
    if len(said.segments) > 1:
        branch.add("DRAM", f"{memory_text(node)} used, {format_count(node.num_blocks, 'block')}")
    if said.model is not None:
        model = said.model
        reuse = "reuse on" if model.is_reuse_safe else f"reuse OFF: {model.reuse_reason}"
        branch.add(
            f"model {model.name}",
            f"{model.dtype}, {model.block_tokens} tokens a block, "
            f"{format_size(model.bytes_per_token)} a token, {reuse}",
        )
        branch.add("KV arena", memory_text(node))
    for tier, usage in node.tiers.items():
        used = f"{format_size(usage.used_bytes)} of {format_size(usage.capacity_bytes)}"
        branch.add(f"{tier} tier", f"{used}, {format_count(usage.num_blocks, 'block')}")
    if said.data is not None:
        branch.add("data path", f"shm {said.data.unix_path}, tcp {said.data.tcp}")
    if said.metrics:
        branch.add("metrics", f"http://{said.metrics}/metrics")
