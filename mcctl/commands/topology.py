"""mcctl topology: where everything is."""

from collections import defaultdict
from typing import Any

import typer

from daemons.client.cluster import ClusterClient
from daemons.core.ids import HostId
from daemons.core.units import format_size
from daemons.protocol.node import ListedNode, ListNodesReply
from mcctl import render
from mcctl.commands import new_app
from mcctl.commands.node import memory_text
from mcctl.settings import settings_of

app = new_app()


@app.callback()
def _noun() -> None:
    """Hosts, daemons, segments, devices and models as a tree."""


@app.command()
def show(context: typer.Context) -> None:
    """Hosts, their daemons, and what each of them brings: segments, models, data paths.

    \b
    Example: mcctl topology show
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s) as client:
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
            {
                "host_id": host_id,
                "host": nodes[0].node.host if nodes else reply.master.host,
                "master": reply.master if host_id == reply.master.host_id else None,
                "nodes": nodes,
            }
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
        for node in nodes:
            _add_node(host, node)
    return root


def _add_node(host: render.Branch, node: ListedNode) -> None:
    said = node.node
    branch = host.add(
        f"mc-{said.role} {said.node}", f"{node.state}, pid {said.pid}, {said.control}"
    )
    for segment in said.segments:
        used = f"{format_size(node.used_bytes)} of {format_size(segment.capacity_bytes)} used"
        branch.add(
            f"segment {segment.region.region_id}",
            f"{used}, {node.num_blocks} blocks, {segment.path}",
        )
    if said.model is not None:
        model = said.model
        reuse = "reuse on" if model.is_reuse_safe else f"reuse OFF: {model.reuse_reason}"
        branch.add(
            f"model {model.name}",
            f"{model.dtype}, {model.block_tokens} tokens a block, "
            f"{format_size(model.bytes_per_token)} a token, {reuse}",
        )
        branch.add("KV arena", memory_text(node))
    if said.data is not None:
        branch.add("data path", f"shm {said.data.unix_path}, tcp {said.data.tcp}")
    if said.metrics:
        branch.add("metrics", f"http://{said.metrics}/metrics")
