"""mcctl cache clear: delete blocks."""

import sys
from typing import Annotated

import typer

from daemons.client.cluster import ClusterClient
from daemons.core.errors import Rejected, Unavailable
from daemons.core.units import format_count, format_size
from daemons.protocol.block import BlockFilter
from daemons.protocol.cache import ClearBlocksReply
from mcctl import render
from mcctl.commands.cache.block_filter import (
    HashPrefix,
    Model,
    Node,
    OlderThan,
    Tenant,
    block_filter,
    check_node,
)
from mcctl.output_schema import prints
from mcctl.settings import settings_of


@prints(ClearBlocksReply)
def clear(
    context: typer.Context,
    model: Model = None,
    tenant: Tenant = None,
    older_than: OlderThan = None,
    hash_prefix: HashPrefix = None,
    node: Node = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete blocks that all filters match, or every one. Asks first.

    \b
    Example: mcctl cache clear --model SmolLM2-135M-Instruct --yes
    """
    settings = settings_of(context)
    chosen = block_filter(model, tenant, older_than, hash_prefix, node)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        check_node(client, node)
        if not yes:
            _confirm(client, chosen)
        reply = client.clear_blocks(chosen, max(settings.wait_s, 30.0))
    if settings.output == "json":
        render.emit_json(reply)
    else:
        render.emit_line(
            f"{format_count(reply.num_cleared, 'block')} deleted, {format_size(reply.cleared_bytes)}"
        )
    if reply.num_left:
        raise Unavailable(
            f"{reply.num_left} blocks are left: their nodes did not answer in time; try again"
        )


def _confirm(client: ClusterClient, chosen: BlockFilter) -> None:
    if not sys.stdin.isatty():
        raise Rejected("clear deletes blocks; say --yes where nobody can be asked")
    count = sum(1 for _ in client.blocks(chosen))
    typer.confirm(f"Delete {format_count(count, 'block')}?", abort=True, err=True)
