"""mcctl cache: what is in the pool, where a prompt's blocks are; writing blocks down, and deleting them.

Looking never changes recency.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.core.errors import Conflict, NotFound, Rejected, Unavailable
from daemons.core.ids import short
from daemons.core.units import format_count, format_duration, format_size, format_usage
from daemons.protocol.block import (
    BlockFilter,
    BlockLocation,
    CacheStatReply,
    ClearBlocksReply,
    FlushBlocksReply,
    ListedBlock,
    TierUsage,
)
from daemons.protocol.node import ListNodesReply
from mcctl import render
from mcctl.cache import objects as cache_objects
from mcctl.cache import pins as cache_pins
from mcctl.cache import replicas as cache_replicas
from mcctl.cache.block_filter import HashPrefix, Model, Node, OlderThan, Tenant, block_filter
from mcctl.cache.flush import FlushPlan
from mcctl.cache.flush import begin as begin_flush
from mcctl.cache.flush import wait as wait_for_flush
from mcctl.cache.objects import ObjectResult
from mcctl.cache.pins import hex_digits
from mcctl.cache.prompt_blocks import LocatedBlock, LocatedPrompt, Prompt, locate_prompt
from mcctl.commands import new_app
from mcctl.output_schema import prints
from mcctl.prompt_text import read_text
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.watching import watchable

app = new_app()
app.command()(cache_pins.pin)
app.command()(cache_pins.unpin)
app.command()(cache_objects.put)
app.command()(cache_objects.get)
app.command("rm")(cache_objects.remove)
app.command()(cache_objects.export)
app.command("import")(cache_objects.import_)
app.command()(cache_replicas.replicate)
app.command()(cache_replicas.move)

_DETAIL_LIMIT = 2


class FlushTier(StrEnum):
    """What lies below DRAM."""

    ssd = "ssd"
    object = "object"


class StatResult(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the pool and what became of look-ups; fields are only ever added."""

    num_blocks: int
    num_replicas: int
    used_bytes: int
    capacity_bytes: int
    num_leased: int
    num_lookups: int
    num_lookup_blocks: int
    num_hit_blocks: int
    hit_share: float
    num_stored: int
    num_evicted: int
    num_cleared: int
    blocks_by_model: dict[str, int]
    num_pinned: int
    tiers: dict[str, TierUsage]
    """Beside DRAM."""
    objects_by_namespace: dict[str, int]


@app.command("list")
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
        cache_objects.list_objects(settings, namespace, prefix, limit)
        return
    chosen = block_filter(model, tenant, older_than, hash_prefix, node)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        blocks = list(client.blocks(chosen, limit))
        if node is not None and not blocks:
            check_node(node, client.nodes())
    columns = [
        Column("hash", lambda b: b.meta.hash.hex()),
        Column("model", lambda b: b.meta.model, extra=5),
        Column("tenant", lambda b: b.meta.tenant or "-", extra=6),
        Column("depth", lambda b: str(b.meta.depth), is_number=True),
        Column("tokens", lambda b: str(b.meta.num_tokens), is_number=True, extra=4),
        Column("size", lambda b: format_size(b.length), is_number=True),
        Column("age", lambda b: format_duration(b.age_s), is_number=True, extra=2),
        Column("idle", lambda b: format_duration(b.idle_s), is_number=True),
        Column("leased", lambda b: "yes" if b.is_leased else "no", extra=3),
        Column("pin", _pin_text, extra=7),
        Column("nodes", _places_text),
    ]
    render.emit(settings.output, {"blocks": blocks}, columns, blocks)
    if len(blocks) == limit and settings.output == "table":
        render.note(f"only the first {limit}; --limit shows more")


@app.command()
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
            raise NotFound(f"no block {block} in the pool")
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
    _emit_facts(settings.output, facts)


@app.command()
@prints(StatResult, ObjectResult)
@watchable
def stat(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="An object; without it all.")] = None,
    namespace: Annotated[str, typer.Option(help="The object's namespace.")] = "",
) -> None:
    """Totals: blocks, bytes, hits, evictions. Or one object.

    \b
    Example: mcctl cache stat --output json
    Example: mcctl cache stat weights-7 --namespace training
    """
    settings = settings_of(context)
    if name is not None:
        cache_objects.stat_object(settings, namespace, name)
        return
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        reply = client.cache_stat()
        namespaces = client.namespaces()
    share = reply.num_hit_blocks / max(reply.num_lookup_blocks, 1)
    if settings.output == "json":
        names = set(StatResult.__struct_fields__) & set(CacheStatReply.__struct_fields__)
        fields = {name: getattr(reply, name) for name in names}
        objects = {cache_objects.shown(each.namespace): each.num_names for each in namespaces}
        render.emit_json(StatResult(**fields, hit_share=share, objects_by_namespace=objects))
        return
    facts = [
        (
            "blocks",
            f"{reply.num_blocks} in {format_count(reply.num_replicas, 'replica')}, {reply.num_leased} leased, "
            f"{reply.num_pinned} pinned",
        ),
        ("memory", format_usage(reply.used_bytes, reply.capacity_bytes)),
        *((tier, _usage_text(usage)) for tier, usage in reply.tiers.items()),
        (
            "look-ups",
            f"{reply.num_lookups}, {reply.num_hit_blocks} of {format_count(reply.num_lookup_blocks, 'block')} found "
            f"({share:.0%})",
        ),
        ("stored", f"{reply.num_stored} since the master started"),
        ("evicted", str(reply.num_evicted)),
        ("cleared", str(reply.num_cleared)),
        *(
            (f"of {model or 'objects'}", f"{format_count(count, 'block')}")
            for model, count in reply.blocks_by_model.items()
        ),
        *cache_objects.namespace_facts(namespaces),
    ]
    _emit_facts(settings.output, facts)


@app.command()
@prints(LocatedPrompt)
def locate(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Option(help="The text itself.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file with the text; - for stdin.")] = None,
    model: Annotated[str | None, typer.Option(help="Needed only where several are served.")] = None,
    model_path: Annotated[
        Path | None,
        typer.Option(help="Directory with the tokenizer, where this host keeps it elsewhere."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message before it.")] = None,
    tenant: Annotated[str, typer.Option(help="Whose blocks.")] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="The text is a whole prompt, not a user's chat message.")
    ] = False,
) -> None:
    """Which blocks of a prompt are in the pool, and where.

    The text is taken as the only user message of a chat, as `mcctl request send` sends it; --raw takes it as it is.

    \b
    Example: mcctl cache locate --file handbook.txt --model SmolLM2-135M-Instruct
    """
    settings = settings_of(context)
    wanted = Prompt(text=read_text(prompt, file), system=system, is_raw=raw, tenant=tenant)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        found = locate_prompt(client, wanted, model=model, model_path=model_path)
    columns = [
        Column("block", lambda b: str(b.index), is_number=True),
        Column("tokens", lambda b: f"{b.start}-{b.end - 1}", is_number=True),
        Column("hash", lambda b: short(b.hash)),
        Column("nodes", _nodes_text),
        Column("begins", lambda b: repr(b.text), is_prose=True),
    ]
    render.emit(settings.output, found, columns, found.blocks)
    if settings.output == "table":
        render.note(
            f"{found.num_tokens} tokens of {found.model}: {found.matched_tokens} can be reused, "
            f"{found.tail_tokens} at the end fill no block"
        )


@app.command()
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


@app.command()
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
        if wait:
            with render.progress("writing") as progress:
                reply = wait_for_flush(client, plan, progress)
        else:
            reply = begin_flush(client, plan)
    if settings.output == "json":
        render.emit_json(reply)
        return
    left = f", {reply.num_left} left ({format_size(reply.left_bytes)})" if reply.num_left else ""
    render.emit_line(f"{format_count(reply.num_done, 'block')} in the {to.value} tier{left}")
    if reply.num_without:
        render.note(f"{reply.num_without} of those left are on nodes without that tier, and stay")


def _confirm(client: ClusterClient, chosen: BlockFilter) -> None:
    if not sys.stdin.isatty():
        raise Rejected("clear deletes blocks; say --yes where nobody can be asked")
    count = sum(1 for _ in client.blocks(chosen))
    typer.confirm(f"Delete {format_count(count, 'block')}?", abort=True, err=True)


def check_node(node: str, known: ListNodesReply) -> None:
    """An empty list may be the answer, or a node that nobody knows. Raises NotFound for that."""
    names = sorted(listed.node.node for listed in known.nodes)
    if node not in names:
        raise NotFound(f"no node {node}; those in the cluster: {', '.join(names) or 'none'}")


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


def _emit_facts(output: str, facts: list[tuple[str, str]]) -> None:
    if output == "plain":
        for name, value in facts:
            render.emit_line(f"{name}\t{value}")
    else:
        render.show_facts(facts)


def _usage_text(usage: TierUsage) -> str:
    used = format_usage(usage.used_bytes, usage.capacity_bytes)
    return f"{used}, {format_count(usage.num_blocks, 'block')}"


def _places_text(block: ListedBlock) -> str:
    """Nodes, with the tier where it is not DRAM."""
    places = zip(block.nodes, block.tiers, strict=True)
    return ", ".join(node if tier == "dram" else f"{node} ({tier})" for node, tier in places)


def _nodes_text(block: LocatedBlock) -> str:
    nodes: list[Any] = [f"{replica.node} ({replica.tier})" for replica in block.replicas]
    return ", ".join(nodes) or "-"
