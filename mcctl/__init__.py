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
    from daemons.core.errors import ConfigError as ConfigError
    from daemons.core.errors import Conflict as Conflict
    from daemons.core.errors import Exhausted as Exhausted
    from daemons.core.errors import McError as McError
    from daemons.core.errors import NotFound as NotFound
    from daemons.core.errors import ProtocolError as ProtocolError
    from daemons.core.errors import Rejected as Rejected
    from daemons.core.errors import TransferError as TransferError
    from daemons.core.errors import Unavailable as Unavailable
    from daemons.protocol.segment import Strided as Strided
    from daemons.transfer import BadCapability as BadCapability
    from daemons.transfer import Cancelled as Cancelled
    from daemons.transfer import Handle as Handle
    from daemons.transfer import Notification as Notification
    from daemons.transfer import NotOver as NotOver
    from daemons.transfer import Pinned as Pinned
    from daemons.transfer import Read as Read
    from daemons.transfer import ReadBatch as ReadBatch
    from daemons.transfer import RegionRef as RegionRef
    from daemons.transfer import StaleEpoch as StaleEpoch
    from daemons.transfer import StaleGeneration as StaleGeneration
    from daemons.transfer import TransferEngine as TransferEngine
    from daemons.transfer import View as View
    from daemons.transfer import Write as Write
    from daemons.transfer import WriteBatch as WriteBatch
    from daemons.transfer import allocate_shared as allocate_shared
    from daemons.transfer import as_bytes as as_bytes
    from daemons.transfer import as_memory as as_memory
    from daemons.transfer import contiguous as contiguous
    from mcctl.cluster.plan import ClusterOptions as ClusterOptions
    from mcctl.cluster.processes import LocalCluster as LocalCluster

_PUBLIC = {
    "daemons.client.cluster": ("ClusterClient",),
    "daemons.client.objects.async_store": ("AsyncStore",),
    "daemons.client.objects.store": ("Store",),
    "daemons.core.errors": (
        "ConfigError",
        "Conflict",
        "Exhausted",
        "McError",
        "NotFound",
        "ProtocolError",
        "Rejected",
        "TransferError",
        "Unavailable",
    ),
    "daemons.protocol.segment": ("Strided",),
    "daemons.transfer": (
        "BadCapability",
        "Cancelled",
        "Handle",
        "NotOver",
        "Notification",
        "Pinned",
        "Read",
        "ReadBatch",
        "RegionRef",
        "StaleEpoch",
        "StaleGeneration",
        "TransferEngine",
        "View",
        "Write",
        "WriteBatch",
        "allocate_shared",
        "as_bytes",
        "as_memory",
        "contiguous",
    ),
    "mcctl.cluster.plan": ("ClusterOptions",),
    "mcctl.cluster.processes": ("LocalCluster",),
}
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
