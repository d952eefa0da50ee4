"""mcctl cache stat: totals of the pool and what became of look-ups, or one object."""

from typing import Annotated

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.core.units import format_count, format_usage
from daemons.protocol.cache import CacheStatReply, TierUsage
from mcctl import render
from mcctl.cache.object_store import shown
from mcctl.commands.cache.objects import ObjectResult, namespace_facts, stat_object
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.watching import watchable


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
        stat_object(settings, namespace, name)
        return
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        reply = client.cache_stat()
        namespaces = client.namespaces()
    share = reply.num_hit_blocks / max(reply.num_lookup_blocks, 1)
    if settings.output == "json":
        names = set(StatResult.__struct_fields__) & set(CacheStatReply.__struct_fields__)
        fields = {name: getattr(reply, name) for name in names}
        objects = {shown(each.namespace): each.num_names for each in namespaces}
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
            f"{reply.num_lookups}, {reply.num_hit_blocks} of {format_count(reply.num_lookup_blocks, 'block')} found"
            f"{f' ({share:.0%})' if reply.num_lookup_blocks else ''}",
        ),
        ("stored", f"{reply.num_stored} since the master started"),
        ("evicted", str(reply.num_evicted)),
        ("cleared", str(reply.num_cleared)),
        *(
            (f"of {model or 'objects'}", f"{format_count(count, 'block')}")
            for model, count in reply.blocks_by_model.items()
        ),
        *namespace_facts(namespaces),
    ]
    render.emit_facts(settings.output, facts)


def _usage_text(usage: TierUsage) -> str:
    used = format_usage(usage.used_bytes, usage.capacity_bytes)
    return f"{used}, {format_count(usage.num_blocks, 'block')}"
