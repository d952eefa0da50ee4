"""mcctl cache list and show: which blocks are in the pool, and where. Looking never changes recency."""

from typing import Annotated

import typer

from daemons.client.cluster import ClusterClient
from daemons.core.errors import Conflict, NotFound
from daemons.core.units import format_count, format_duration, format_size
from daemons.protocol.block import BlockFilter, BlockLocation
from daemons.protocol.cache import ListedBlock
from mcctl import render
from mcctl.cache.places import places_text
from mcctl.commands.cache.block_filter import (
    HashPrefix,
    Model,
    Node,
    OlderThan,
    Tenant,
    block_filter,
    check_node,
)
from mcctl.commands.cache.objects import ObjectResult, list_objects
from mcctl.commands.cache.pins import hex_digits
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.watching import watchable

_DETAIL_LIMIT = 2
"""Two are enough to know that digits name more than one."""


@prints({"blocks": list[ListedBlock]}, {"objects": list[ObjectResult]})
@watchable
def list_blocks(
    context: typer.Context,
    model: Model = None,
    tenant: Tenant = None,
    older_than: OlderThan = None,
    hash_prefix: HashPrefix = None,
    node: Node = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 1000,
    namespace: Annotated[
        str | None, typer.Option(help="Not blocks, but the objects of this namespace.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Only objects whose names begin so.")] = "",
) -> None:
    """Blocks, or with --namespace objects, and where they are.

    \b
    Example: mcctl cache list --model SmolLM2-135M-Instruct --older-than 3600
    Example: mcctl cache list --namespace training --prefix weights-
    """
    settings = settings_of(context)
    if namespace is not None:
        list_objects(settings, namespace, prefix, limit)
        return
    chosen = block_filter(model, tenant, older_than, hash_prefix, node)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        blocks = list(client.blocks(chosen, limit))
        if node is not None and not blocks:
            check_node(client, node)
    columns = [
        Column("hash", lambda b: b.meta.hash.hex()),
        Column("model", lambda b: b.meta.model, extra=6),
        Column("tenant", lambda b: b.meta.tenant or "-", extra=7),
        Column("depth", lambda b: str(b.meta.depth), is_number=True, extra=2),
        Column("tokens", lambda b: str(b.meta.num_tokens), is_number=True, extra=5),
        Column("size", lambda b: format_size(b.length), is_number=True, extra=1),
        Column("age", lambda b: format_duration(b.age_s), is_number=True, extra=3),
        Column("idle", lambda b: format_duration(b.idle_s), is_number=True),
        Column("leased", lambda b: "yes" if b.is_leased else "no", extra=4),
        Column("pin", _pin_text, extra=8),
        Column("nodes", _places_text, is_prose=True),
    ]
    render.emit(settings.output, {"blocks": blocks}, columns, blocks)
    if len(blocks) == limit and settings.output == "table":
        render.note(f"only the first {limit}; --limit shows more")


@prints({"block": ListedBlock, "replicas": list[BlockLocation]})
def show(
    context: typer.Context,
    block: Annotated[str, typer.Argument(help="A hash, or as many hex digits as name one block.")],
) -> None:
    """All that is known of one block.

    \b
    Example: mcctl cache show 3fa9c1
    """
    settings = settings_of(context)
    chosen = BlockFilter(hash_prefix=hex_digits(block))
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        found = list(client.blocks(chosen, _DETAIL_LIMIT))
        if not found:
            raise NotFound(f"no block {block} in the pool; mcctl cache list shows those that are")
        if len(found) > 1:
            raise Conflict(f"several blocks begin with {block}; give more digits")
        replicas = client.locate([found[0].meta.hash])[0]
    if settings.output == "json":
        render.emit_json({"block": found[0], "replicas": replicas})
        return
    facts = _block_facts(found[0])
    for node, tier in zip(found[0].nodes, found[0].tiers, strict=True):
        if tier == "device":
            facts.append((f"on {node}", "device, in its KV arena"))
    for replica in replicas:
        facts.append(
            (
                f"on {replica.node}",
                f"{replica.tier}, {format_size(replica.length)} at offset {replica.offset} of region "
                f"{replica.region.region_id}, version {replica.version}, checksum {replica.seal_checksum:016x}",
            )
        )
    render.emit_facts(settings.output, facts)


def _block_facts(block: ListedBlock) -> list[tuple[str, str]]:
    return [
        ("hash", block.meta.hash.hex()),
        ("parent", block.meta.parent.hex()),
        ("namespace", block.meta.namespace.hex()),
        ("model", block.meta.model),
        ("tenant", block.meta.tenant or "-"),
        ("tokens", f"{block.meta.num_tokens}, {format_count(block.meta.depth, 'block')} before it"),
        ("age", f"{format_duration(block.age_s)}, last used {format_duration(block.idle_s)} ago"),
        ("leased", "yes" if block.is_leased else "no"),
        ("pin", _pin_text(block)),
        ("replicas", f"{len(_pool_nodes(block))}, {block.wanted} wanted"),
    ]


def _pool_nodes(block: ListedBlock) -> set[str]:
    """What an arena holds is no replica that others could read."""
    places = zip(block.nodes, block.tiers, strict=True)
    return {node for node, tier in places if tier != "device"}


def _pin_text(block: ListedBlock) -> str:
    return "-" if block.pin == "none" else f"{block.pin}, {format_duration(block.pin_left_s)} left"


def _places_text(block: ListedBlock) -> str:
    return places_text(zip(block.nodes, block.tiers, strict=True))
