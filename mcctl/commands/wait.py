"""mcctl wait: for scripts that go on once the cluster is where they need it."""

from typing import Annotated, Final

import typer

from daemons.client.cluster import ClusterClient
from daemons.core.ids import NodeId
from daemons.core.units import format_count
from daemons.protocol.node import ListedNode
from mcctl import render, waiting
from mcctl.commands import new_app
from mcctl.output_schema import prints
from mcctl.settings import settings_of

app = new_app()

DEFAULT_S: Final = 600.0
"""Where --timeout is not given: as long as a drain of a large node may take."""

_ANSWER_S: Final = 2.0


@app.callback()
def _noun() -> None:
    """Return once the cluster is ready, or a node drained; exit with 7 when it is not in time."""


@app.command()
@prints({"num_nodes": int})
def ready(
    context: typer.Context,
    nodes: Annotated[
        int, typer.Option(min=0, help="At least so many nodes, instances included, must be there.")
    ] = 1,
) -> None:
    """Until the master answers and all that joined are alive.

    --timeout says for how long at most.

    \b
    Example: mcctl wait ready --nodes 5 --timeout 60
    """
    settings = settings_of(context)
    with (
        ClusterClient(settings.master, _ANSWER_S, settings.key_file) as client,
        render.progress("waiting") as progress,
    ):
        timeout_s = settings.timeout_s or DEFAULT_S
        reply = waiting.until_ready(client.nodes, nodes, timeout_s, progress)
    if settings.output == "json":
        render.emit_json({"num_nodes": len(reply.nodes)})
    else:
        render.emit_line(f"{format_count(len(reply.nodes), 'node')} alive")


@app.command()
@prints(ListedNode)
def drained(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="A cache node that `mcctl node drain` was told.")],
) -> None:
    """Until a node can be stopped without losing a block.

    --timeout says for how long at most.

    \b
    Example: mcctl wait drained cachenode-2 --timeout 300
    """
    settings = settings_of(context)
    with (
        ClusterClient(settings.master, _ANSWER_S, settings.key_file) as client,
        render.progress("waiting") as progress,
    ):
        timeout_s = settings.timeout_s or DEFAULT_S
        listed = waiting.until_drained(client, NodeId(node), timeout_s, progress)
    if settings.output == "json":
        render.emit_json(listed)
    else:
        render.emit_line(f"{node} is drained: it is safe to stop it")
