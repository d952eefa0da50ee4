"""A model ready to serve: an engine over a KV arena that peers can read, its generations, what it says of itself.

The arena, or on an accelerator its host twin (staging.py), is one shared mapping, registered once. A slot's
generation word guards every byte of it: `release` raises the word before the slot can be given to another sequence,
so a late reader never trusts what it read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from daemons.config.common import EngineSection, ModelSection, size_bytes
from daemons.core.errors import ConfigError
from daemons.core.units import format_size
from daemons.engine.arena.slots import Slot
from daemons.engine.base import Arena, Engine
from daemons.engine.checkpoint.model_files import read_json
from daemons.engine.geometry import CHUNK_TOKENS, KvGeometry
from daemons.protocol.node import ModelDescription
from daemons.protocol.segment import RegionRef, Source, Strided
from daemons.transfer import ByteArray, GenerationTable, SharedMemory, TransferEngine


@dataclass(slots=True)
class Instance:
    """Slots are allocated and released by one thread (the loop's); the runner belongs to another (the model's)."""

    transfer: TransferEngine
    memory: SharedMemory
    region: RegionRef
    generations: GenerationTable
    arena: Arena
    engine: Engine
    model: ModelDescription

    @property
    def geometry(self) -> KvGeometry:
        return self.arena.geometry

    def ranges(
        self,
        slot: Slot,
        start: int,
        end: int,
        first_layer: int = 0,
        last_layer: int | None = None,
    ) -> Strided:
        """Bytes of tokens [start, end) of layers [first_layer, last_layer]: one row per (layer, k|v)."""
        last = self.geometry.num_layers - 1 if last_layer is None else last_layer
        return Strided(
            offset=slot.half_offset(first_layer, 0, start),
            row_bytes=(end - start) * self.geometry.bytes_per_token_layer_half,
            num_rows=2 * (last - first_layer + 1),
            stride_bytes=slot.capacity_tokens * self.geometry.bytes_per_token_layer_half,
        )

    def source(self, slot: Slot, start: int, end: int) -> Source:
        """What a peer needs to read tokens [start, end) of all layers while the slot lives."""
        return Source(
            region=self.region,
            ranges=self.ranges(slot, start, end),
            generation=self.generations.guard(slot.index),
        )

    def half(self, slot: Slot, layer: int, half: int, num_tokens: int) -> ByteArray:
        """Writable bytes of the first tokens' keys (0) or values (1) in a layer."""
        offset = slot.half_offset(layer, half, 0)
        return self.memory.array[
            offset : offset + num_tokens * self.geometry.bytes_per_token_layer_half
        ]

    def release(self, slot: Slot) -> None:
        """Void every descriptor of the slot, then give it back."""
        self.generations.advance(slot.index)
        self.arena.free(slot)

    def close(self) -> None:
        """The mapping itself goes with the process: an engine may still show it."""
        self.generations.close()
        self.transfer.deregister(self.region)


OpenInstance = Callable[[ModelSection, EngineSection, TransferEngine], Instance]
"""Raises ConfigError for a directory or a size that cannot serve."""


def model_directory(model: ModelSection) -> Path:
    model_dir = Path(model.path)
    if not model_dir.is_dir():
        raise ConfigError(
            f"`model.path`: {model.path} is no directory; `mcctl model fetch` gets a small model"
        )
    return model_dir


def capacity_tokens(engine: EngineSection, geometry: KvGeometry) -> int:
    """What engine.kv_memory holds, whole chunks of it."""
    tokens = size_bytes(engine.kv_memory, "engine.kv_memory") // geometry.bytes_per_token
    tokens -= tokens % CHUNK_TOKENS
    if tokens < CHUNK_TOKENS:
        least = format_size(CHUNK_TOKENS * geometry.bytes_per_token)
        raise ConfigError(
            f"`engine.kv_memory`: {engine.kv_memory} holds less than {CHUNK_TOKENS} tokens of this model; give it "
            f"at least {least}, and {format_size(geometry.bytes_per_token)} for each further token it is to hold"
        )
    return tokens


def eos_token_ids(model_dir: Path) -> list[int]:
    """generation_config.json wins over config.json, as in the checkpoints' own tools."""
    for name in ("generation_config.json", "config.json"):
        if not (model_dir / name).exists():
            continue
        found = read_json(model_dir / name).get("eos_token_id")
        if isinstance(found, int):
            return [found]
        if isinstance(found, list):
            return [int(token) for token in found]
    return []
