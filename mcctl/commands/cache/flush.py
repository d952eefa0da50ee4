"""mcctl cache flush: write blocks to a lower tier."""

from enum import StrEnum
from typing import Annotated

import typer

from daemons.client.cluster import ClusterClient
from daemons.core.units import format_count, format_size
from daemons.protocol.cache import FlushBlocksReply
from mcctl import render
from mcctl.cache.flush import FlushPlan, dead_nodes
from mcctl.cache.flush import begin as begin_flush
from mcctl.cache.flush import wait as wait_for_flush
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


class FlushTier(StrEnum):
    """What lies below DRAM."""

    ssd = "ssd"
    object = "object"


@prints(FlushBlocksReply)
def flush(
    context: typer.Context,
    model: Model = None,
    tenant: Tenant = None,
    older_than: OlderThan = None,
    hash_prefix: HashPrefix = None,
    node: Node = None,
    to: Annotated[FlushTier, typer.Option(help="The tier to write to.")] = FlushTier.ssd,
    evict: Annotated[bool, typer.Option("--evict", help="Then free them in DRAM.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until all are written.")] = False,
) -> None:
    """Write blocks to a lower tier. Deletes nothing.

    Those of DRAM that all given filters match, or every one.

    \b
    Example: mcctl cache flush --evict --wait
    """
    settings = settings_of(context)
    chosen = block_filter(model, tenant, older_than, hash_prefix, node)
    plan = FlushPlan(chosen, to.value, evict)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        check_node(client, node)
        if wait:
            dead = ""
            with render.progress("writing") as progress:
                reply = wait_for_flush(client, plan, progress)
        else:
            reply = begin_flush(client, plan)
            dead = dead_nodes(client, plan)
    if settings.output == "json":
        render.emit_json(reply)
        return
    left = f", {reply.num_left} left ({format_size(reply.left_bytes)})" if reply.num_left else ""
    render.emit_line(f"{format_count(reply.num_done, 'block')} in the {to.value} tier{left}")
    if dead:
        render.note(dead)
    if reply.num_without:
        render.note(f"{reply.num_without} of those left are on nodes without that tier, and stay")
