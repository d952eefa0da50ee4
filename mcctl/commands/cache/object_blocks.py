"""Objects where a verb of `mcctl cache` takes blocks: with --namespace its arguments are names."""

from collections.abc import Sequence
from typing import Annotated

import typer

from daemons.core.ids import BlockHash
from mcctl.cache.object_store import open_store
from mcctl.settings import Settings

ObjectNamespace = Annotated[
    str | None, typer.Option("--namespace", help="Arguments are names of objects there.")
]


def blocks_of(settings: Settings, namespace: str, names: Sequence[str]) -> list[BlockHash]:
    """Of the current versions. Raises NotFound for a name that is not there."""
    with open_store(settings, namespace) as store:
        return [block_hash for name in names for block_hash in store.blocks_of(name)]
