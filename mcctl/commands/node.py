"""mcctl node: the processes that joined the cluster."""

import json
from typing import Annotated

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.config.costs import InstanceCosts
from daemons.core.errors import Conflict, NotFound
from daemons.core.ids import NodeId
from daemons.core.units import format_count, format_duration, format_usage
from daemons.protocol.address import address_of
from daemons.protocol.node import ListedNode, NodeDescription
from mcctl import render, waiting
from mcctl.commands import new_app
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.views.node_state import state_text
from mcctl.watching import watchable

app = new_app()

Node = Annotated[str, typer.Argument(help="The id of a cache node.")]


@app.callback()
def _noun() -> None:
    """The processes that joined the cluster."""


@app.command("list")
@prints({"incarnation": int, "master": NodeDescription, "nodes": list[ListedNode]})
@watchable
def list_nodes(context: typer.Context) -> None:
    """Every node: state, load, memory.

    \b
    Example: mcctl node list --output json
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        reply = client.nodes()
    columns = [
        Column("node", lambda n: n.node.node),
        Column("role", lambda n: n.node.role),
        Column("state", lambda n: state_text(n.state, is_draining=n.is_draining)),
        Column("host", lambda n: n.node.host, extra=2),
        Column("pid", lambda n: str(n.node.pid), is_number=True, extra=3),
        Column("endpoint", lambda n: address_of(n.node.control), extra=5),
        Column("joined", lambda n: format_duration(n.joined_s), is_number=True, extra=4),
        Column(
            "queued",
            lambda n: str(n.load.num_queued) if n.load else "-",
            is_number=True,
            extra=1,
        ),
        Column("running", lambda n: str(n.load.num_running) if n.load else "-", is_number=True),
        Column("memory", memory_text, is_number=True),
        Column("drain", drain_text, extra=6),
        Column("tiers", tiers_text, is_number=True, extra=7),
    ]
    result = {"incarnation": reply.incarnation, "master": reply.master, "nodes": reply.nodes}
    render.emit(settings.output, result, columns, reply.nodes)


@app.command()
@prints(ListedNode)
@watchable
def show(
    context: typer.Context, node: Annotated[str, typer.Argument(help="As in `node list`.")]
) -> None:
    """One node: what it is, where, how it does, and what it holds.

    \b
    Example: mcctl node show cachenode-2
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        listed = _find(client, node)
    if settings.output == "json":
        render.emit_json(listed)
    else:
        render.emit_facts(settings.output, facts_of(listed))


@app.command()
@prints(ListedNode)
def remove(
    context: typer.Context, node: Annotated[str, typer.Argument(help="One that is dead.")]
) -> None:
    """Forget a node that is dead, and its drain.

    The master does so by itself in ten minutes, but for the drain. One that comes back joins anew.

    \b
    Example: mcctl node remove cachenode-2
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        listed = _find(client, node)
        if listed.state != "dead":
            raise Conflict(
                f"node {node} is {listed.state}: stop it first; mcctl keys revoke cuts off one that does not stop"
            )
        if listed.is_draining:
            client.drain_node(listed.node.node, is_draining=False)
        client.remove_node(listed.node.node, listed.node.epoch)
    if settings.output == "json":
        render.emit_json(listed)
    else:
        render.emit_line(f"{node} is forgotten")


def _find(client: ClusterClient, node: str) -> ListedNode:
    """Raises NotFound."""
    listed = next((each for each in client.nodes().nodes if each.node.node == node), None)
    if listed is None:
        raise NotFound(f"no node {node} has joined; mcctl node list shows those that have")
    return listed


def facts_of(listed: ListedNode) -> list[tuple[str, str]]:
    """All that is known of it, but for what its role does not have."""
    node, load, model = listed.node, listed.load, listed.node.model
    found = [
        ("node", node.node),
        ("role", node.role),
        ("state", f"{listed.state}, last heard {format_duration(listed.last_beat_s)} ago"),
        ("host", f"{node.host}, pid {node.pid}, joined {format_duration(listed.joined_s)} ago"),
        ("control", address_of(node.control)),
        ("data", node.data.tcp if node.data is not None else ""),
        ("metrics", node.metrics),
        ("software", node.software),
        ("model", f"{model.name}, namespace {model.namespace.hex()}" if model is not None else ""),
        ("work", f"{load.num_running} running, {load.num_queued} queued" if load else ""),
        ("memory", memory_text(listed)),
        ("blocks", str(listed.num_blocks) if listed.capacity_bytes else ""),
        ("tiers", tiers_text(listed)),
        ("drain", drain_text(listed)),
    ]
    return [(name, value) for name, value in found if value not in ("", "-")]


@app.command()
@prints({"instances": list[InstanceCosts]})
def costs(context: typer.Context) -> None:
    """What instances measured of themselves. A file for `conductor.costs_file`.

    \b
    Example: mcctl node costs > /etc/mooncake/costs.toml
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        nodes = client.nodes().nodes
    measured = [costs for listed in nodes if (costs := measured_costs(listed)) is not None]
    if settings.output == "json":
        render.emit_json({"instances": measured})
    else:
        render.emit_line("\n".join(map(costs_text, measured)))


def measured_costs(listed: ListedNode) -> InstanceCosts | None:
    """None of a node that is no instance, or has measured nothing yet."""
    load, model = listed.load, listed.node.model
    if load is None or model is None:
        return None
    terms = {
        name: value
        for name in InstanceCosts.__struct_fields__
        if isinstance(value := getattr(load, name, None), float) and value > 0
    }
    return InstanceCosts(node=listed.node.node, model=model.name, **terms) if terms else None


def costs_text(costs: InstanceCosts) -> str:
    """One [[instance]] table of TOML, without what is not known."""
    lines = ["[[instance]]"]
    for name, value in msgspec.structs.asdict(costs).items():
        if isinstance(value, str):
            lines.append(f"{name} = {json.dumps(value)}")
        elif value:
            lines.append(f"{name} = {value:.6e}")
    return "\n".join(lines) + "\n"


@app.command()
@prints({"node": str, "is_draining": bool}, ListedNode)
def drain(
    context: typer.Context,
    node: Node,
    wait: Annotated[bool, typer.Option("--wait", help="Until it can be stopped.")] = False,
) -> None:
    """Make a cache node safe to stop. Others get what only it holds.

    Nothing new is sent to it; that is kept over restarts of the master.

    \b
    Example: mcctl node drain cachenode-2 --wait
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        client.drain_node(NodeId(node), is_draining=True)
        if not wait:
            if settings.output == "json":
                render.emit_json({"node": node, "is_draining": True})
            else:
                render.emit_line(
                    f"{node} is draining; `mcctl wait drained {node}` says when it can be stopped"
                )
            return
        with render.progress("draining") as progress:
            listed = waiting.until_drained(client, NodeId(node), None, progress)
    if settings.output == "json":
        render.emit_json(listed)
    else:
        render.emit_line(f"{node} is drained: it is safe to stop it")


@app.command()
@prints({"node": str, "is_draining": bool})
def undrain(context: typer.Context, node: Node) -> None:
    """Use a cache node again that was drained.

    \b
    Example: mcctl node undrain cachenode-2
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        client.drain_node(NodeId(node), is_draining=False)
    if settings.output == "json":
        render.emit_json({"node": node, "is_draining": False})
    else:
        render.emit_line(f"{node} takes new blocks again")


def drain_text(node: ListedNode) -> str:
    """What a draining node still holds that nobody else does."""
    if not node.is_draining:
        return "-"
    if node.left_blocks is None:
        return "counting"
    if node.left_blocks == 0:
        return "safe to stop"
    why = f": {node.left_why}" if node.left_why else ""
    return f"{format_count(node.left_blocks, 'block')} left{why}"


def memory_text(node: ListedNode) -> str:
    """What a cache node holds, or the tokens an instance has room for."""
    if node.capacity_bytes:
        return format_usage(node.used_bytes, node.capacity_bytes)
    if node.node.capacity_tokens and node.load:
        return f"{node.load.free_tokens} of {node.node.capacity_tokens} tokens free"
    return "-"


def tiers_text(node: ListedNode) -> str:
    """What a cache node holds in the tiers below DRAM, and an instance in its KV arena for later prompts."""
    texts = (
        f"{tier} {format_usage(usage.used_bytes, usage.capacity_bytes)}"
        for tier, usage in node.tiers.items()
    )
    return ", ".join(texts) or "-"
