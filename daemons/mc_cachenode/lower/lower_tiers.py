"""The tiers below DRAM that the config names, opened, the fastest first."""

import configparser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from daemons.config.common import size_bytes
from daemons.config.mc_cachenode import CachenodeConfig, FlushMode, ObjectSection, SsdSection
from daemons.config.secret import read_secret
from daemons.core.errors import ConfigError
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_cachenode.replica import wall_ms
from daemons.protocol.block import Tier
from daemons.service.paths import state_path
from daemons.store.index.format import DeadRecord
from daemons.store.lower import LowerTier
from daemons.store.object import DeleteJournal, ObjectSettings, ObjectTier, S3Place, open_s3
from daemons.store.ssd import DiskDirectory, SsdSettings, SsdTier

OnDropped = Callable[[Tier, Sequence[BlockHash], str], object]
"""Any thread: a tier gave these up, for space or for being bad."""
OnFound = Callable[[Tier, Sequence[BlockHash]], object]
"""Any thread: a tier that was not open yet has these."""


@dataclass(frozen=True, slots=True)
class FlushModes:
    """By model, with one for all others."""

    default: FlushMode
    by_model: Mapping[str, FlushMode]

    def of(self, model: str) -> FlushMode:
        return self.by_model.get(model, self.default)


class Adopter(Protocol):
    """A tier that reads what others wrote."""

    def adopt(self, nodes: Iterable[str]) -> None:
        """For these nodes, which are away, and for no others."""


@dataclass(frozen=True, slots=True)
class OpenedTier:
    """One of the node's lower tiers. Nothing is written before `store.start`."""

    tier: Tier
    store: LowerTier
    modes: FlushModes
    adopter: Adopter | None = None
    """Of a tier that other machines can read too."""
    dead: Sequence[DeadRecord] = ()
    """Objects whose delete outlived the memory of an earlier life."""


def open_lower(
    config: CachenodeConfig, on_dropped: OnDropped, on_found: OnFound
) -> list[OpenedTier]:
    """Raises ConfigError, with nothing left open."""
    opened: list[OpenedTier] = []
    node = NodeId(config.node.id)
    try:
        if config.ssd.directory:
            modes = FlushModes(config.ssd.flush, config.ssd.flush_models)
            opened.append(OpenedTier("ssd", _open_ssd(config.ssd, node, on_dropped), modes))
        if config.object.bucket:
            modes = FlushModes(config.object.flush, config.object.flush_models)
            state = state_path(config.node.state_dir, node)
            store = _open_object(config.object, (node, state), on_dropped, on_found)
            opened.append(OpenedTier("object", store, modes, store, store.dead_names()))
    except ConfigError:
        for tier in opened:
            tier.store.close()
        raise
    return opened


def _open_object(
    config: ObjectSection, owner: tuple[NodeId, Path], on_dropped: OnDropped, on_found: OnFound
) -> ObjectTier:
    """The store is listed once the tier is started, for it may be down now. `owner`: the node, its state directory."""
    node, state = owner
    settings = ObjectSettings(
        capacity_bytes=size_bytes(config.capacity, "object.capacity"),
        part_bytes=size_bytes(config.part, "object.part"),
        read_workers=config.read_workers,
    )
    place = S3Place(
        bucket=config.bucket,
        prefix=f"{config.prefix.strip('/')}/{node}",
        endpoint=config.endpoint,
        region=config.region,
        credentials=_credentials(config.credentials_file),
        timeout_s=config.timeout_s,
        connections=config.read_workers + 10,  # the writer's, and those that list at the start
    )
    tier = ObjectTier(
        open_s3(place),
        settings,
        on_dropped=lambda hashes, why: on_dropped("object", hashes, why),
        on_found=lambda hashes: on_found("object", hashes),
    )
    journal = DeleteJournal(state, f"{config.bucket}/{place.prefix}", wall_ms() / 1000)
    tier.keep_deletes_in(journal)
    return tier


def _credentials(path: str) -> tuple[str, str, str | None] | None:
    """Raises ConfigError."""
    text = read_secret(path, "object.credentials_file")
    if text is None:
        return None
    parser = configparser.ConfigParser(default_section="", interpolation=None)
    try:
        parser.read_string(text.decode())
        default = parser["default"]
        return (
            default["aws_access_key_id"],
            default["aws_secret_access_key"],
            default.get("aws_session_token"),
        )
    except (configparser.Error, KeyError, UnicodeDecodeError):
        raise ConfigError(
            f"`object.credentials_file`: {path} needs a section [default] with aws_access_key_id and "
            "aws_secret_access_key"
        ) from None


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
