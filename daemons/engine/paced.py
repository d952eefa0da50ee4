"""An engine of stated service times, for rehearsals: everything around it is real, only the model is a clock.

KV keeps its true size and flow, but nobody writes it; tokens follow from seed and position alone. Free of torch.
"""

import hashlib
import time
from collections.abc import Sequence as Many
from dataclasses import astuple, dataclass
from typing import Final, Protocol

from daemons.config.common import EngineSection, ModelSection
from daemons.engine.arena.slots import Slot, SlotSpace, round_up
from daemons.engine.base import Cancelled, Made, PrefillHooks
from daemons.engine.checkpoint.model_files import read_json
from daemons.engine.decode.sequence import Sequence
from daemons.engine.geometry import CHUNK_TOKENS, KvDtype, KvGeometry
from daemons.engine.instance import Instance, capacity_tokens, eos_token_ids, model_directory
from daemons.engine.models import read_decoder_config, read_geometry
from daemons.engine.models.config import DecoderConfig
from daemons.protocol.node import ModelDescription
from daemons.protocol.request import SamplingParams
from daemons.transfer import GenerationTable, TransferEngine, allocate_shared

_LEAST_SLEEP_S: Final = 0.0005
"""Less is made up for by the next one."""
_STRIDE: Final = 7919
_PRINTABLE: Final = range(40, 90)
"""Single characters in most vocabularies, so that each token is a piece of text of its own."""


class ServiceTimes(Protocol):
    """In seconds; a hardware profile of the simulator is one."""

    @property
    def prompt_s(self) -> float:
        """What a prompt costs once, however long."""

    def chunk_s(self, start: int, num_tokens: int) -> float: ...

    def step_s(self, num_sequences: int, num_context_tokens: float) -> float: ...


@dataclass(slots=True)
class _Pace:
    """Sleeps until what was asked for has passed since it began, however late single sleeps end."""

    due_s: float

    def take(self, seconds: float) -> None:
        self.due_s += seconds
        left_s = self.due_s - time.monotonic()
        if left_s > _LEAST_SLEEP_S:
            time.sleep(left_s)

    def wait_for(self, layer: int, hooks: PrefillHooks) -> None:
        """Compute stands still while the KV of a layer is loaded."""
        began_s = max(time.monotonic(), self.due_s)
        hooks.before_layer(layer)
        self.due_s += max(0.0, time.monotonic() - began_s)


class PacedEngine:
    """An Engine."""

    def __init__(self, times: ServiceTimes, config: DecoderConfig) -> None:
        self._times = times
        self._num_layers = config.num_layers
        stops = set(config.eos_token_ids)
        tokens = [token for token in range(config.vocab_size) if token not in stops]
        self._tokens = [token for token in tokens if token in _PRINTABLE] or tokens

    def prefill(
        self,
        slot: Slot,
        tokens: list[int],
        start: int,
        hooks: PrefillHooks,
        sampling: SamplingParams,
    ) -> int:
        pace = _Pace(time.monotonic())
        pace.take(self._times.prompt_s)
        first, position = start, start
        while position < len(tokens):
            end = min(round_up(position + 1), len(tokens))
            layer_s = self._times.chunk_s(position, end - position) / self._num_layers
            for layer in range(self._num_layers):
                if hooks.is_cancelled():
                    raise Cancelled(f"prefill cancelled at position {position}, layer {layer}")
                if position == first:
                    pace.wait_for(layer, hooks)
                pace.take(layer_s)
                hooks.after_layer(layer, position, end)
            position = end
        return self._token(sampling.seed, len(tokens))

    def decode(self, step: Many[Sequence]) -> list[Made]:
        pace = _Pace(time.monotonic())
        pace.take(self._times.step_s(len(step), sum(each.position + 1 for each in step)))
        return [Made((self._token(each.sampling.seed, each.position + 1),)) for each in step]

    def upload(self, slot: Slot, start: int, end: int, layer: int | None = None) -> None:
        """Nobody computes with it."""

    def download(self, slot: Slot, start: int, end: int, layer: int | None = None) -> None:
        """Nobody wrote any."""

    def _token(self, seed: int, position: int) -> int:
        return self._tokens[(seed + _STRIDE * position) % len(self._tokens)]


def open_paced(
    model: ModelSection, engine: EngineSection, transfer: TransferEngine, *, times: ServiceTimes
) -> Instance:
    """Raises ConfigError for a directory without a config.json that we know, or for too little memory."""
    model_dir = model_directory(model)
    config = read_decoder_config(read_json(model_dir / "config.json"))
    dtype: KvDtype = "bfloat16" if engine.dtype == "auto" else engine.dtype
    geometry = read_geometry(model_dir, dtype, engine.block_tokens)
    num_tokens = capacity_tokens(engine, geometry)
    memory = allocate_shared("mooncake-kv", num_tokens * geometry.bytes_per_token)
    description = ModelDescription(
        name=model.name or model_dir.resolve().name,
        namespace=_namespace(config, geometry),
        dtype=dtype,
        block_tokens=engine.block_tokens,
        chunk_tokens=CHUNK_TOKENS,
        max_context_tokens=min(config.max_positions, num_tokens),
        num_layers=geometry.num_layers,
        num_kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        vocab_size=config.vocab_size,
        eos_token_ids=eos_token_ids(model_dir),
        is_reuse_safe=True,
        is_decode_canonical=True,
    )
    return Instance(
        transfer,
        memory,
        transfer.register(memory),
        GenerationTable(transfer, engine.max_sequences),
        SlotSpace(geometry, num_tokens, Slot, num_sequences=engine.max_sequences),
        PacedEngine(times, config),
        description,
    )


def _namespace(config: DecoderConfig, geometry: KvGeometry) -> bytes:
    """16 bytes; no engine that computes has the same, so none takes this KV for its own."""
    parts = repr((config, astuple(geometry))).encode()
    return hashlib.blake2b(parts, digest_size=16, person=b"mc-paced").digest()
