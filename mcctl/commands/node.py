"""mcctl node: the processes that joined the cluster."""

import typer

from daemons.client.cluster import ClusterClient
from daemons.core.units import format_duration, format_size
from daemons.protocol.address import address_of
from daemons.protocol.node import ListedNode
from mcctl import render
from mcctl.commands import new_app
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.watching import watchable

app = new_app()


@app.callback()
def _noun() -> None:
    """The processes that joined the cluster."""


@app.command("list")
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
        Column("state", lambda n: n.state),
        Column("host", lambda n: n.node.host, extra=1),
        Column("pid", lambda n: str(n.node.pid), is_number=True, extra=2),
        Column("endpoint", lambda n: address_of(n.node.control), extra=4),
        Column("joined", lambda n: format_duration(n.joined_s), is_number=True, extra=3),
        Column("queued", lambda n: str(n.load.num_queued) if n.load else "-", is_number=True),
        Column("running", lambda n: str(n.load.num_running) if n.load else "-", is_number=True),
        Column("memory", memory_text, is_number=True),
        Column("below", below_text, is_number=True, extra=7),
    ]
    result = {"incarnation": reply.incarnation, "master": reply.master, "nodes": reply.nodes}
    render.emit(settings.output, result, columns, reply.nodes)


def memory_text(node: ListedNode) -> str:
    """What a cache node holds, or the tokens an instance has room for."""
    if node.capacity_bytes:
        return f"{format_size(node.used_bytes)} of {format_size(node.capacity_bytes)}"
    if node.node.capacity_tokens and node.load:
        return f"{node.load.free_tokens} of {node.node.capacity_tokens} tokens free"
    return "-"


def below_text(node: ListedNode) -> str:
    """What a cache node holds in the tiers below DRAM."""
    texts = (
        f"{tier} {format_size(usage.used_bytes)} of {format_size(usage.capacity_bytes)}"
        for tier, usage in node.tiers.items()
    )
    return ", ".join(texts) or "-"
