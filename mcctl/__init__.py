"""Public API of Mooncake MC and the mcctl command line. Names are imported when they are used."""

import importlib

TYPE_CHECKING = (
    False  # without `typing`: whatever is imported here comes before mcctl can mind an interrupt
)
if TYPE_CHECKING:
    from typing import Any

    from daemons.client.cluster import ClusterClient as ClusterClient
    from daemons.client.objects.async_store import AsyncStore as AsyncStore
    from daemons.client.objects.store import Store as Store
    from daemons.transfer import TransferEngine as TransferEngine
    from mcctl.cluster.plan import ClusterOptions as ClusterOptions
    from mcctl.cluster.processes import LocalCluster as LocalCluster

_HOMES = {
    "AsyncStore": "daemons.client.objects.async_store",
    "ClusterClient": "daemons.client.cluster",
    "ClusterOptions": "mcctl.cluster.plan",
    "LocalCluster": "mcctl.cluster.processes",
    "Store": "daemons.client.objects.store",
    "TransferEngine": "daemons.transfer",
}


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
