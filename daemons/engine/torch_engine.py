"""The engine in torch: a real checkpoint, on CPU or CUDA."""

import logging
import time
from collections.abc import Sequence as Many
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import torch

from daemons.config.common import EngineSection, ModelSection
from daemons.config.host_dtype import host_dtype
from daemons.core.errors import ConfigError
from daemons.core.units import format_size, parse_whole
from daemons.engine.arena.kv_arena import KvArena, KvSlot
from daemons.engine.arena.slots import Slot
from daemons.engine.arena.staging import Staging
from daemons.engine.base import Made, PrefillHooks
from daemons.engine.canary import CanaryResult, run_canary
from daemons.engine.checkpoint.fingerprint import NamespaceParts, model_fingerprint, namespace
from daemons.engine.decode.sampler import Sampler, sample_drafted
from daemons.engine.decode.sequence import Sequence
from daemons.engine.drafts.plan import Drafting
from daemons.engine.geometry import CHUNK_TOKENS, KvDtype
from daemons.engine.instance import Instance, capacity_tokens, eos_token_ids, model_directory
from daemons.engine.models import read_geometry
from daemons.engine.probe_record import FILE_NAME, ProbeRecord, key_of, using
from daemons.engine.runner import DecodeRow, Runner
from daemons.protocol.node import ModelDescription
from daemons.protocol.request import SamplingParams
from daemons.transfer import GenerationTable, Progress, TransferEngine, allocate_shared

log = logging.getLogger(__name__)

_PROGRESS_S: Final = 5.0
"""Between two words on the arena's memory."""
_SIGNATURE: Final = "canary"
"""Of the prompt's KV at a start that found no difference."""


@dataclass(frozen=True, slots=True)
class TorchEngine:
    """An Engine; slots are those of the runner's arena."""

    runner: Runner
    staging: Staging
    drafting: Drafting

    def prefill(
        self,
        slot: Slot,
        tokens: list[int],
        start: int,
        hooks: PrefillHooks,
        sampling: SamplingParams,
    ) -> int:
        prefill = self.runner.start_prefill(_own(slot), tokens, start, hooks)
        while (logits := prefill.step()) is None:
            pass
        return Sampler(sampling).sample(logits, position=len(tokens))

    def decode(self, step: Many[Sequence]) -> list[Made]:
        began_s = time.perf_counter()
        drafts = self.drafting.plan(step, self.runner.draft_lengths)
        # Rows with equally many drafts, and of those rows whose slots are neighbours, share attention calls.
        order = sorted(
            range(len(step)), key=lambda row: (len(drafts[row]), step[row].slot.offset_bytes)
        )
        rows = [
            DecodeRow(_own(step[row].slot), step[row].tokens[-1], step[row].position, drafts[row])
            for row in order
        ]
        sampled = sample_drafted(
            [Sampler(step[row].sampling) for row in order],
            self.runner.decode(rows),
            [(row.position + 1, row.drafts) for row in rows],
        )
        tokens = dict(zip(order, sampled, strict=True))
        made = [Made(tokens[row], len(drafts[row])) for row in range(len(step))]
        self.drafting.learn(step, made, time.perf_counter() - began_s)
        return made

    def upload(self, slot: Slot, start: int, end: int, layer: int | None = None) -> None:
        self.staging.upload(_own(slot), start, end, layer)

    def download(self, slot: Slot, start: int, end: int, layer: int | None = None) -> None:
        self.staging.download(_own(slot), start, end, layer)


def open_torch(
    model: ModelSection, engine: EngineSection, transfer: TransferEngine, state: Path | None = None
) -> Instance:
    """Load the model, run the canary. Raises ConfigError for a directory or a size that cannot serve.

    What is tried of kernels meanwhile is kept in the directory `state` for the next start.
    """
    model_dir = model_directory(model)
    _check_device(engine.device)
    dtype = dtype_here(engine)
    engine = msgspec.structs.replace(engine, dtype=dtype)
    geometry = read_geometry(model_dir, dtype, engine.block_tokens)
    num_tokens = capacity_tokens(engine, geometry)
    arena_bytes = KvArena.arena_bytes(geometry, num_tokens)
    memory = allocate_shared("mooncake-kv", arena_bytes, progress=_log_progress("allocated"))
    memory.populate(_log_progress("mapped"))
    region = transfer.register(memory)
    generations = GenerationTable(transfer, engine.max_sequences)
    is_host = engine.device == "cpu"
    arena = KvArena(
        geometry,
        num_tokens,
        memory.view if is_host else None,
        num_sequences=engine.max_sequences,
        device=engine.device,
    )
    staging = Staging(arena, memory.view, is_same=is_host)
    runner, canary = _start_runner(model_dir, engine, arena, state)
    if canary.draft_reason is not None and engine.draft_tokens:
        log.warning("drafts are off here why=%s", canary.draft_reason)
    if not canary.reuse_equal:
        log.warning("KV reuse is off here why=%s", canary.reason)
    description = _describe(model, engine, runner, canary)
    torch_engine = TorchEngine(runner, staging, Drafting(engine.draft_tokens))
    return Instance(transfer, memory, region, generations, arena, torch_engine, description)


def dtype_here(engine: EngineSection) -> KvDtype:
    """What `auto` is on this device."""
    if engine.dtype != "auto":
        return engine.dtype
    return host_dtype() if engine.device == "cpu" else "bfloat16"


def _log_progress(what: str) -> Progress:
    """A host may give hundreds of GiB, which takes minutes."""
    logged_s = time.monotonic()

    def log_progress(num_bytes: int, total: int) -> None:
        nonlocal logged_s
        if time.monotonic() - logged_s >= _PROGRESS_S:
            logged_s = time.monotonic()
            log.info("KV arena %s=%s of=%s", what, format_size(num_bytes), format_size(total))

    return log_progress


def _start_runner(
    model_dir: Path, engine: EngineSection, arena: KvArena, state: Path | None
) -> tuple[Runner, CanaryResult]:
    """With what an equal start before this one found out, where there was one."""
    record = None
    if state is not None:
        torch.set_num_threads(engine.threads)  # the key says what it is
        key = key_of(model_fingerprint(model_dir), engine.dtype, engine.device, engine.threads)
        record = ProbeRecord(state / FILE_NAME, key)
    began_s = time.monotonic()
    with using(record):
        runner = Runner(model_dir, arena, threads=engine.threads, device=engine.device)
        known = None if record is None else record.find(_SIGNATURE)
        canary = run_canary(runner, known)
    log.info(
        "model loaded seconds=%.1f canary=%.1f known=%s",
        time.monotonic() - began_s,
        canary.elapsed_s,
        known is not None,
    )
    if record is not None:
        is_equal = canary.reason is None and canary.draft_reason is None
        if is_equal and runner.kv_signature != known:
            record.keep(_SIGNATURE, runner.kv_signature)
        record.save()
    return runner, canary


def _own(slot: Slot) -> KvSlot:
    assert isinstance(slot, KvSlot), "a slot of another engine"
    return slot


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    kind, _, number = device.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 0
    index = parse_whole(number or "0")
    if index is None or index >= count:
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
        eos_token_ids=eos_token_ids(model_dir),
        is_reuse_safe=canary.reuse_equal,
        reuse_reason=canary.reason or "",
        is_decode_canonical=canary.decode_equal,
    )
