"""mcctl cache replicate and move: how many replicas blocks have, and where."""

from collections.abc import Callable
from typing import Annotated, Final

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.core.errors import NotFound
from daemons.core.ids import NodeId
from daemons.core.units import format_count
from daemons.protocol.block import BlockFilter
from daemons.protocol.replication import ReplicateReply
from mcctl import render
from mcctl.commands.cache.block_filter import (
    Model,
    Node,
    OlderThan,
    Tenant,
    block_filter,
    check_node,
)
from mcctl.commands.cache.object_blocks import ObjectNamespace, blocks_of
from mcctl.output_schema import prints
from mcctl.settings import Settings, settings_of
from mcctl.waiting import until_copied

_NOTHING: Final = "no block matches; mcctl cache list, with the same flags, shows which do"


@prints(ReplicateReply)
def replicate(
    context: typer.Context,
    count: Annotated[
        int, typer.Option(min=0, max=8, help="So many; 0: as many as the pool wants.")
    ],
    block: Annotated[
        str | None,
        typer.Argument(
            help="A hash, or hex digits that hashes begin with; with --namespace a name."
        ),
    ] = None,
    prefer: Annotated[
        list[str] | None, typer.Option(help="A node to copy to before others; can be repeated.")
    ] = None,
    model: Model = None,
    tenant: Tenant = None,
    older_than: OlderThan = None,
    node: Node = None,
    namespace: ObjectNamespace = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until all are made.")] = False,
) -> None:
    """Have so many replicas of blocks, on distinct hosts.

    Of those that all filters match; made in the background.

    \b
    Example: mcctl cache replicate 3fa9c1 --count 2 --prefer cachenode-2
    """
    settings = settings_of(context)
    chosen = _chosen(settings, namespace, block, (model, tenant, older_than, node))
    nodes = [NodeId(each) for each in prefer or []]
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        check_node(client, node)
        reply = _copied(lambda: client.replicate_blocks(chosen, count, nodes), wait)
    if not reply.num_blocks:
        raise NotFound(_NOTHING)
    if settings.output == "json":
        render.emit_json(reply)
        return
    left = f"; {reply.num_left} lack some yet" if reply.num_left else ""
    wanted = format_count(count, "replica") if count else "as many replicas as the pool wants"
    render.emit_line(f"{format_count(reply.num_blocks, 'block')}, {wanted} of each{left}")
    if count > reply.num_domains:
        hosts = format_count(reply.num_domains, "host")
        render.note(f"not more than one replica of a block is on a host, and the pool has {hosts}")


@prints(ReplicateReply)
def move(
    context: typer.Context,
    to: Annotated[str, typer.Option(help="The node they go to.")],
    block: Annotated[
        str | None,
        typer.Argument(
            help="A hash, or hex digits that hashes begin with; with --namespace a name."
        ),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="The node they are taken from; else any that has them.")
    ] = None,
    model: Model = None,
    tenant: Tenant = None,
    older_than: OlderThan = None,
    namespace: ObjectNamespace = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until all are there.")] = False,
) -> None:
    """Copy blocks to a node, and free them where they were.

    Those that all filters match; in the background.

    \b
    Example: mcctl cache move --node cachenode --to cachenode-2 --wait
    """
    if block is None and node is None and model is None and tenant is None and older_than is None:
        raise typer.BadParameter("say which blocks: a hash, --node or another filter")
    settings = settings_of(context)
    chosen = _chosen(settings, namespace, block, (model, tenant, older_than, node))
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        check_node(client, node)
        reply = _copied(lambda: client.move_blocks(chosen, NodeId(to)), wait)
    if not reply.num_blocks:
        raise NotFound(_NOTHING)
    if settings.output == "json":
        render.emit_json(reply)
        return
    left = f", {reply.num_left} are on their way" if reply.num_left else ""
    failed = f", {reply.num_failed} could not be moved: {reply.why}" if reply.num_failed else ""
    render.emit_line(f"{format_count(reply.num_blocks, 'block')} to be on {to}{left}{failed}")


def _chosen(
    settings: Settings,
    namespace: str | None,
    block: str | None,
    others: tuple[str | None, str | None, float | None, str | None],
) -> BlockFilter:
    """`others`: model, tenant, age and node."""
    model, tenant, older_than, node = others
    if namespace is None:
        return block_filter(model, tenant, older_than, block, node)
    if block is None:
        raise typer.BadParameter("with --namespace say which object")
    chosen = block_filter(model, tenant, older_than, None, node)
    return msgspec.structs.replace(chosen, hashes=tuple(blocks_of(settings, namespace, [block])))


def _copied(ask: Callable[[], ReplicateReply], wait: bool) -> ReplicateReply:
    if not wait:
        return ask()
    with render.progress("copying") as progress:
        return until_copied(ask, progress)
