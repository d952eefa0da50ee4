"""The engine that only takes time: what it calls, what it says, and that it needs no torch."""

import subprocess
import sys
import time

import pytest

from daemons.engine.arena.slots import Slot, SlotSpace
from daemons.engine.base import Cancelled
from daemons.engine.decode.sequence import Sequence
from daemons.engine.geometry import CHUNK_TOKENS, KvGeometry
from daemons.engine.models.config import DecoderConfig, RopeConfig
from daemons.engine.paced import PacedEngine
from daemons.protocol.request import SamplingParams

LAYERS = 2
EOS = 41
CONFIG = DecoderConfig(
    num_layers=LAYERS, hidden_size=8, num_heads=1, num_kv_heads=1, head_dim=8, vocab_size=100, max_positions=4096,
    rms_norm_eps=1e-5, rope=RopeConfig(10_000.0), has_qk_norm=False, ties_embeddings=True, eos_token_ids=(EOS,),
)  # fmt: skip
ARENA = SlotSpace(KvGeometry(LAYERS, 1, 8, "float32"), 4096, Slot, num_sequences=8)
SLOT = ARENA.allocate(2048)


class Times:
    """A tenth of a second for each part; what was asked for is kept."""

    prompt_s = 0.1

    def __init__(self) -> None:
        self.chunks: list[tuple[int, int]] = []
        self.steps: list[tuple[int, float]] = []

    def chunk_s(self, start: int, num_tokens: int) -> float:
        self.chunks.append((start, num_tokens))
        return 0.1

    def step_s(self, num_sequences: int, num_context_tokens: float) -> float:
        self.steps.append((num_sequences, num_context_tokens))
        return 0.1


class Hooks:
    """Loading each layer takes as long as it is told to."""

    def __init__(self, load_s: float = 0.0, cancel_at: int = 100) -> None:
        self.before: list[int] = []
        self.after: list[tuple[int, int, int]] = []
        self._load_s = load_s
        self._cancel_at = cancel_at

    def before_layer(self, layer: int) -> None:
        self.before.append(layer)
        time.sleep(self._load_s)

    def after_layer(self, layer: int, start: int, end: int) -> None:
        self.after.append((layer, start, end))

    def is_cancelled(self) -> bool:
        return len(self.after) >= self._cancel_at


def test_a_prompt_takes_the_stated_times_chunk_by_chunk_and_layer_by_layer() -> None:
    times, hooks = Times(), Hooks()
    engine = PacedEngine(times, CONFIG)
    num_tokens, start = 2 * CHUNK_TOKENS + 10, 64
    began_s = time.monotonic()
    engine.prefill(SLOT, [1] * num_tokens, start, hooks, SamplingParams(max_tokens=1))
    assert time.monotonic() - began_s >= 0.1 + 3 * 0.1
    assert times.chunks == [(64, 192), (256, 256), (512, 10)]
    assert hooks.before == [0, 1], "loads are waited for in the first chunk only"
    assert hooks.after == [
        (layer, start, start + size) for start, size in times.chunks for layer in range(LAYERS)
    ]


def test_waiting_for_a_load_is_not_made_up_for() -> None:
    hooks = Hooks(load_s=0.2)
    began_s = time.monotonic()
    PacedEngine(Times(), CONFIG).prefill(
        SLOT, [1] * CHUNK_TOKENS, 64, hooks, SamplingParams(max_tokens=1)
    )
    assert time.monotonic() - began_s >= 0.1 + 0.1 + LAYERS * 0.2


def test_a_cancelled_prompt_ends_between_layers() -> None:
    hooks = Hooks(cancel_at=3)
    with pytest.raises(Cancelled):
        PacedEngine(Times(), CONFIG).prefill(
            SLOT, [1] * 2000, 0, hooks, SamplingParams(max_tokens=1)
        )
    assert len(hooks.after) == 3


def test_tokens_follow_from_seed_and_position_and_never_end_an_answer() -> None:
    engine, times = PacedEngine(Times(), CONFIG), Times()
    engine = PacedEngine(times, CONFIG)
    sequences = [
        Sequence(str(seed), SLOT, [1] * 9, SamplingParams(max_tokens=500, seed=seed), 500)
        for seed in (0, 0, 1)
    ]
    tokens = [each.tokens for each in engine.decode(sequences)]
    assert tokens[0] == tokens[1] != tokens[2]
    assert times.steps == [(3, 27)]
    said = {engine._token(seed, position) for seed in range(9) for position in range(200)}
    assert EOS not in said
    assert len(said) > 20


def test_prefill_and_decode_start_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import daemons.mc_prefill.__main__, daemons.mc_decode.__main__\n"
        "print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "fine\n", done.stderr
