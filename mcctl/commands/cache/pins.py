"""mcctl cache pin and unpin: keep the prefix that ends with a block, whatever else would be evicted."""

from collections.abc import Sequence
from typing import Annotated

import typer

from daemons.client.cluster import ClusterClient
from daemons.core.errors import Conflict, NotFound
from daemons.core.ids import BlockHash
from daemons.core.units import format_count, format_duration
from daemons.protocol.block import BlockFilter
from daemons.protocol.pin import PinBlocksReply
from mcctl import render
from mcctl.commands.cache.object_blocks import ObjectNamespace, blocks_of
from mcctl.durations import duration
from mcctl.output_schema import prints
from mcctl.settings import Settings, settings_of

_MAX_TTL_S = 30 * 24 * 3600.0

Hashes = Annotated[
    list[str],
    typer.Argument(help="Hashes, or as many hex digits as name one block; with --namespace names."),
]


@prints(PinBlocksReply)
def pin(
    context: typer.Context,
    blocks: Hashes,
    ttl: Annotated[
        float, duration(least_s=0.001, most_s=_MAX_TTL_S, help="How long the pin lasts.")
    ] = 1800.0,
    hard: Annotated[
        bool, typer.Option("--hard", help="Never evicted, instead of after everything else.")
    ] = False,
    namespace: ObjectNamespace = None,
) -> None:
    """Keep blocks, and all blocks before them in their prefixes. A new pin replaces the one before.

    \b
    Example: mcctl cache pin 3fa9c1 --ttl 3600 --hard
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        hashes = _chosen(settings, client, blocks, namespace)
        reply = client.pin_blocks(hashes, "hard" if hard else "soft", ttl)
    _show(
        settings.output,
        reply,
        f"{reply.num_changed} pinned for {format_duration(ttl)}; with what is before them and all other pins "
        f"{format_count(reply.num_pinned, 'block')} held",
    )


@prints(PinBlocksReply)
def unpin(context: typer.Context, blocks: Hashes, namespace: ObjectNamespace = None) -> None:
    """End the pins of blocks; what other pins hold stays.

    \b
    Example: mcctl cache unpin 3fa9c1
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        reply = client.pin_blocks(_chosen(settings, client, blocks, namespace), "none")
    _show(
        settings.output,
        reply,
        f"{reply.num_changed} unpinned; {format_count(reply.num_pinned, 'block')} held by other pins",
    )


def hex_digits(text: str) -> str:
    """Raises BadParameter for what cannot begin a block's hash."""
    digits = text.lower()
    if not digits or len(digits) > 32 or set(digits) - set("0123456789abcdef"):
        raise typer.BadParameter(f"{text!r} is no block hash: 1 to 32 hex digits")
    return digits


def _chosen(
    settings: Settings, client: ClusterClient, texts: Sequence[str], namespace: str | None
) -> list[BlockHash]:
    if namespace is None:
        return _hashes(client, texts)
    return blocks_of(settings, namespace, texts)


def _hashes(client: ClusterClient, texts: Sequence[str]) -> list[BlockHash]:
    """Whole hashes are taken as they are, for a pin may outlive its block; raises NotFound and Conflict."""
    hashes = []
    for text in texts:
        digits = hex_digits(text)
        if len(digits) == 32:
            hashes.append(BlockHash(bytes.fromhex(digits)))
            continue
        found = list(client.blocks(BlockFilter(hash_prefix=digits), 2))
        if not found:
            raise NotFound(f"no block {text} in the pool; mcctl cache list shows those that are")
        if len(found) > 1:
            raise Conflict(f"several blocks begin with {text}; give more digits")
        hashes.append(found[0].meta.hash)
    return list(dict.fromkeys(hashes))


def _show(output: str, reply: PinBlocksReply, line: str) -> None:
    if output == "json":
        render.emit_json(reply)
    else:
        render.emit_line(line)
    if reply.missing:
        names = ", ".join(block_hash.hex() for block_hash in reply.missing[:3])
        raise NotFound(f"{len(reply.missing)} not in the pool, or without a pin: {names}")
