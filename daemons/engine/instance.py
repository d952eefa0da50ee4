"""A model ready to serve: the runner over a KV arena that peers can read, its generations, what it says of itself.

The arena, or on an accelerator its host twin (staging.py), is one shared mapping, registered once. A slot's
generation word guards every byte of it: `release` raises the word before the slot can be given to another sequence,
so a late reader never trusts what it read.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from daemons.config.common import EngineSection, ModelSection, size_bytes
from daemons.core.errors import ConfigError
from daemons.core.units import format_size
from daemons.engine.canary import CanaryResult, run_canary
from daemons.engine.checkpoint import read_json
from daemons.engine.fingerprint import NamespaceParts, model_fingerprint, namespace
from daemons.engine.geometry import CHUNK_TOKENS, KvGeometry
from daemons.engine.kv_arena import KvArena, KvSlot
from daemons.engine.runner import Runner, read_geometry
from daemons.engine.staging import Staging
from daemons.protocol.node import ModelDescription
from daemons.protocol.segment import RegionRef, Source, Strided
from daemons.transfer import (
    ByteArray,
    GenerationTable,
    SharedMemory,
    TransferEngine,
    allocate_shared,
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Instance:
    """Slots are allocated and released by one thread (the loop's); the runner belongs to another (the model's)."""

    transfer: TransferEngine
    memory: SharedMemory
    region: RegionRef
    generations: GenerationTable
    arena: KvArena
    staging: Staging
    runner: Runner
    model: ModelDescription
    canary: CanaryResult

    @property
    def geometry(self) -> KvGeometry:
        return self.arena.geometry

    def ranges(
        self,
        slot: KvSlot,
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

    def source(self, slot: KvSlot, start: int, end: int) -> Source:
        """What a peer needs to read tokens [start, end) of all layers while the slot lives."""
        return Source(
            region=self.region,
            ranges=self.ranges(slot, start, end),
            generation=self.generations.guard(slot.index),
        )

    def half(self, slot: KvSlot, layer: int, half: int, num_tokens: int) -> ByteArray:
        """Writable bytes of the first tokens' keys (0) or values (1) in a layer."""
        offset = slot.half_offset(layer, half, 0)
        return self.memory.array[
            offset : offset + num_tokens * self.geometry.bytes_per_token_layer_half
        ]

    def release(self, slot: KvSlot) -> None:
        """Void every descriptor of the slot, then give it back."""
        self.generations.advance(slot.index)
        self.arena.free(slot)

    def close(self) -> None:
        """The mapping itself goes with the process: torch still shows it."""
        self.generations.close()
        self.transfer.deregister(self.region)


def open_instance(model: ModelSection, engine: EngineSection, transfer: TransferEngine) -> Instance:
    """Load the model, run the canary. Raises ConfigError for a directory or a size that cannot serve."""
    model_dir = Path(model.path)
    if not model_dir.is_dir():
        raise ConfigError(
            f"`model.path`: {model.path} is no directory; `mcctl model fetch` gets a small model"
        )
    _check_device(engine.device)
    geometry = read_geometry(model_dir, engine.dtype, engine.block_tokens)
    capacity_tokens = size_bytes(engine.kv_memory, "engine.kv_memory") // geometry.bytes_per_token
    capacity_tokens -= capacity_tokens % CHUNK_TOKENS
    if capacity_tokens < CHUNK_TOKENS:
        least = format_size(CHUNK_TOKENS * geometry.bytes_per_token)
        raise ConfigError(
            f"`engine.kv_memory`: {engine.kv_memory} holds less than {CHUNK_TOKENS} tokens of this model; give it "
            f"at least {least}, and {format_size(geometry.bytes_per_token)} for each further token it is to hold"
        )
    memory = allocate_shared("mooncake-kv", KvArena.arena_bytes(geometry, capacity_tokens))
    region = transfer.register(memory)
    generations = GenerationTable(transfer, engine.max_sequences)
    is_host = engine.device == "cpu"
    arena = KvArena(
        geometry,
        capacity_tokens,
        memory.view if is_host else None,
        num_sequences=engine.max_sequences,
        device=engine.device,
    )
    staging = Staging(arena, memory.view, is_same=is_host)
    runner = Runner(model_dir, arena, threads=engine.threads, device=engine.device)
    canary = run_canary(runner)
    if not canary.reuse_equal:
        log.warning("KV reuse is off here why=%s", canary.reason)
    description = _describe(model, engine, runner, canary)
    return Instance(
        transfer, memory, region, generations, arena, staging, runner, description, canary
    )


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    kind, _, number = device.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 0
    if not (number or "0").isdigit() or int(number or 0) >= count:
        raise ConfigError(
            f'`engine.device`: {device!r} is not here (CUDA devices found: {count}); use "cpu" or "cuda:N"'
        )


def _describe(
    model: ModelSection, engine: EngineSection, runner: Runner, canary: CanaryResult
) -> ModelDescription:
    model_dir = Path(model.path)
    geometry = runner.arena.geometry
    return ModelDescription(
        name=model.name or model_dir.resolve().name,
        namespace=namespace(
            NamespaceParts(
                fingerprint=model_fingerprint(model_dir),
                dtype=engine.dtype,
                block_tokens=engine.block_tokens,
                numerics_id=runner.numerics_id(),
            )
        ),
        dtype=engine.dtype,
        block_tokens=engine.block_tokens,
        chunk_tokens=CHUNK_TOKENS,
        max_context_tokens=runner.max_positions,
        num_layers=geometry.num_layers,
        num_kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        vocab_size=runner.config.vocab_size,
        eos_token_ids=_eos_token_ids(model_dir),
        is_reuse_safe=canary.reuse_equal,
        reuse_reason=canary.reason or "",
        is_decode_canonical=canary.decode_equal,
    )


def _eos_token_ids(model_dir: Path) -> list[int]:
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
