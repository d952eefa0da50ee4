"""The tiers below DRAM that the config names, opened, the fastest first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemons.config.common import size_bytes
from daemons.config.mc_cachenode import CachenodeConfig, FlushMode, SsdSection
from daemons.core.errors import ConfigError
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.block import Tier
from daemons.store.lower_tier import LowerTier
from daemons.store.ssd import DiskDirectory, SsdSettings, SsdTier

OnDropped = Callable[[Tier, Sequence[BlockHash], str], object]
"""Any thread: a tier gave these up, for space or for being bad."""


@dataclass(frozen=True, slots=True)
class FlushModes:
    """By model, with one for all others."""

    default: FlushMode
    by_model: Mapping[str, FlushMode]

    def of(self, model: str) -> FlushMode:
        return self.by_model.get(model, self.default)


@dataclass(frozen=True, slots=True)
class OpenedTier:
    """One of the node's lower tiers. Nothing is written before `store.start`."""

    tier: Tier
    store: LowerTier
    modes: FlushModes


def open_lower(config: CachenodeConfig, on_dropped: OnDropped) -> list[OpenedTier]:
    """Raises ConfigError, with nothing left open."""
    opened: list[OpenedTier] = []
    if config.ssd.directory:
        ssd = _open_ssd(config.ssd, NodeId(config.node.id), on_dropped)
        opened.append(OpenedTier("ssd", ssd, FlushModes(config.ssd.flush, config.ssd.flush_models)))
    return opened


def _open_ssd(config: SsdSection, node: NodeId, on_dropped: OnDropped) -> SsdTier:
    """With all that is on the disk."""
    settings = SsdSettings(
        capacity_bytes=size_bytes(config.capacity, "ssd.capacity"),
        bucket_bytes=size_bytes(config.bucket, "ssd.bucket"),
        read_workers=config.read_workers,
    )
    path = Path(config.directory) / node.replace("/", "_")
    try:
        return SsdTier(
            DiskDirectory(path),
            settings,
            on_dropped=lambda hashes, why: on_dropped("ssd", hashes, why),
        )
    except OSError as error:
        raise ConfigError(
            f"ssd.directory {path}: {error.strerror or error}; mend it, or take [ssd] out of the config"
        ) from error
