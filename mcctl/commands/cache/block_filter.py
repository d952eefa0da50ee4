"""The flags that say which blocks a verb of `mcctl cache` means."""

from typing import Annotated

import typer

from daemons.client.cluster import ClusterClient
from daemons.core.errors import NotFound
from daemons.core.ids import NodeId
from daemons.protocol.block import BlockFilter
from mcctl.commands.cache.pins import hex_digits
from mcctl.durations import duration

Model = Annotated[str | None, typer.Option(help="Only blocks of this model.")]
Tenant = Annotated[str | None, typer.Option(help="Only blocks of this tenant.")]
OlderThan = Annotated[float | None, duration(help="Only blocks sealed longer ago, e.g. 1h.")]
HashPrefix = Annotated[
    str | None, typer.Option(help="Only hashes that begin with these hex digits.")
]
Node = Annotated[str | None, typer.Option(help="Only blocks with a replica on this node.")]


def block_filter(
    model: str | None,
    tenant: str | None,
    older_than_s: float | None,
    hash_prefix: str | None,
    node: str | None,
) -> BlockFilter:
    """Raises BadParameter for what is no hash."""
    return BlockFilter(
        model=model,
        tenant=tenant,
        older_than_s=older_than_s,
        hash_prefix=None if hash_prefix is None else hex_digits(hash_prefix),
        node=None if node is None else NodeId(node),
    )


def check_node(client: ClusterClient, node: str | None) -> None:
    """Nothing may be the answer, or the node one that nobody knows. Raises NotFound for that."""
    names = [] if node is None else sorted(each.node.node for each in client.nodes().nodes)
    if node is not None and node not in names:
        raise NotFound(f"no node {node}; those in the cluster: {', '.join(names) or 'none'}")
