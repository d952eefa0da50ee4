"""Runs one model over the KV arena: prompts chunk by chunk, decode batches row by row.

Reuse never changes a token. For one model, dtype and thread count, KV and logits at a position
are bit-equal whatever prefix was reused and whatever shares the batch, because
  - chunks end at fixed multiples of the grid, counted from position 0;
  - a row attends to keys padded (and masked) to the end of its chunk;
  - products and attention run only at row counts tried to give equal rows (linear.py, attention.py);
  - a fresh prompt's whole chunks share one pass only where that was tried to be equal (wide.py).
Measured (torch 2.13 CPU, 1 thread, AVX-512 with AMX; SmolLM2-135M and random models of each family):
decode steps follow the same rules, and the KV they write equals bit for bit what prefill of the
same tokens writes, in float32 and bfloat16, alone and in company. That costs a few per cent of a
bfloat16 decode step, where attention's products run at 40 rows, and nothing in float32. With AVX2
alone all row counts are equal, one causal call of a wide pass and keys that end early are not. The
canary decides on the machine at hand.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from daemons.core.errors import ConfigError, Rejected
from daemons.engine.arena.kv_arena import TORCH_DTYPES, KvArena, KvSlot
from daemons.engine.arena.slots import round_up
from daemons.engine.base import Cancelled, NoHooks, PrefillHooks
from daemons.engine.checkpoint.checkpoint import give_back_free_memory, open_weights
from daemons.engine.checkpoint.model_files import read_json
from daemons.engine.decode.attention import DecodeAttention, Span
from daemons.engine.geometry import CHUNK_TOKENS
from daemons.engine.models import read_decoder_config
from daemons.engine.models.decoder import LAST_ROWS, LOGIT_ROWS, Decoder
from daemons.engine.prompt.attention import Attention
from daemons.engine.prompt.linear import ROW_BUCKETS, bucket, can_pack
from daemons.engine.prompt.wide import Tail, WidePass


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One step of one sequence: `token` stands at `position`, its KV is written there.

    So do `drafts` at the positions behind, within the same chunk; one less than a number of the
    runner's `draft_lengths`.
    """

    slot: KvSlot
    token: int
    position: int
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.position + 1 + len(self.drafts)


class Runner:
    """A model on one device; not thread-safe, one thread owns it."""

    def __init__(
        self, model_dir: Path, arena: KvArena, *, threads: int = 1, device: str = "cpu"
    ) -> None:
        """Load the checkpoint at the arena's dtype; raises ConfigError for one we cannot run."""
        self.threads = threads
        self._entered_by: int | None = None
        self.enter()
        config = read_decoder_config(read_json(model_dir / "config.json"))
        geometry = arena.geometry
        expected = (config.num_layers, config.num_kv_heads, config.head_dim)
        if (geometry.num_layers, geometry.num_kv_heads, geometry.head_dim) != expected:
            raise ConfigError(f"the KV arena was laid out for another model than {model_dir}")
        self.config = config
        self.arena = arena
        self.device = device
        self.dtype = TORCH_DTYPES[geometry.dtype]
        self.max_positions = min(config.max_positions, arena.capacity_tokens)
        self.is_decode_canonical = False  # until a canary has seen it
        self.kv_signature = "untried"
        self.draft_lengths: tuple[int, ...] = ()
        """How many drafts a row may have, ascending; none until a canary has seen them change nothing."""
        with torch.inference_mode(), open_weights(model_dir, self.dtype, device) as weights:
            self.model = Decoder(config, weights, self.max_positions)
            self.attention = Attention(config, arena, self.max_positions)
            self.decode_attention = DecodeAttention(config, arena, self.attention)
            self.wide = WidePass(self.model, arena.rows, self.attention)
        give_back_free_memory()

    def numerics_id(self) -> str:
        """Names everything that decides how results round; equal ids may share KV.

        Ask after the canary: its signature tells apart what the other parts cannot, such as two
        AVX-512 machines of which one has AMX.
        """
        isa = (
            torch.backends.cpu.get_cpu_capability()
            if self.device == "cpu"
            else torch.cuda.get_device_name()
        )
        kernels = "packed" if self.device == "cpu" and can_pack(self.dtype) else "plain"
        return (
            f"torch={torch.__version__} isa={isa} kernels={kernels} threads={self.threads} "
            f"grid={CHUNK_TOKENS} dtype={self.arena.geometry.dtype} kv={self.kv_signature}"
        )

    def prefill(
        self,
        slot: KvSlot,
        tokens: Sequence[int],
        start: int = 0,
        hooks: PrefillHooks | None = None,
    ) -> torch.Tensor:
        """Compute positions [start, len(tokens)) and return the last one's float32 logits."""
        prefill = self.start_prefill(slot, tokens, start, hooks)
        while (logits := prefill.step()) is None:
            pass
        return logits

    def start_prefill(
        self,
        slot: KvSlot,
        tokens: Sequence[int],
        start: int = 0,
        hooks: PrefillHooks | None = None,
    ) -> "Prefill":
        """The same in steps, so that prompts may take turns."""
        if not 0 <= start < len(tokens) <= min(slot.capacity_tokens, self.max_positions):
            raise ValueError(
                f"cannot prefill [{start}, {len(tokens)}) of a slot of {slot.capacity_tokens}, "
                f"model limit {self.max_positions}"
            )
        if not 0 <= min(tokens) <= max(tokens) < self.config.vocab_size:
            raise Rejected(
                f"a token id of the prompt is outside the model's {self.config.vocab_size}: "
                "was it made by another model's tokenizer?"
            )
        return Prefill(self, slot, torch.tensor(tokens), start, hooks or NoHooks())

    def enter(self) -> None:
        """Hold this thread to the runner's thread count: OpenMP keeps it for each thread."""
        if threading.get_ident() != self._entered_by:
            torch.set_num_threads(self.threads)
            self._entered_by = threading.get_ident()

    @torch.inference_mode()
    def decode(self, rows: Sequence[DecodeRow]) -> torch.Tensor:
        """Float32 logits [token, vocab]: of each row those after its token, then after its drafts.

        Slots must be distinct; rows of equally many drafts should be neighbours.
        """
        for row in rows:
            assert row.end <= min(row.slot.capacity_tokens, self.max_positions)
            assert row.position // CHUNK_TOKENS == (row.end - 1) // CHUNK_TOKENS
            finish_chunk(row.slot, row.end)
        self.enter()
        step = self.decode_attention.step(
            [Span(row.slot, row.position, 1 + len(row.drafts)) for row in rows]
        )
        tokens = [token for row in rows for token in (row.token, *row.drafts)]
        positions = [position for row in rows for position in range(row.position, row.end)]
        padding = [0] * (bucket(len(tokens)) - len(tokens))
        hidden = self.model.forward(
            torch.tensor(tokens + padding, device=self.device),
            torch.tensor(positions + padding, device=self.device),
            step.attend,
        )
        return self.model.logits(hidden)[: len(tokens)]


class Prefill:
    """One prompt under way; `position` is the first one not yet computed."""

    def __init__(
        self, runner: Runner, slot: KvSlot, tokens: torch.Tensor, start: int, hooks: PrefillHooks
    ) -> None:
        self.position = start
        self._runner = runner
        self._slot = slot
        self._tokens = tokens
        self._hooks = hooks
        self._start = start

    @torch.inference_mode()
    def step(self) -> torch.Tensor | None:
        """Compute up to the next chunk boundary; logits [vocab] after the last. Cost: one chunk.

        The first step of a fresh prompt goes as far as one wide pass does.
        """
        runner, start = self._runner, self.position
        runner.enter()
        num_whole = runner.wide.num_tokens(len(self._tokens)) if start == 0 else 0
        if num_whole:
            return self._step_wide(num_whole)
        end = min(round_up(start + 1), len(self._tokens))
        finish_chunk(self._slot, end)
        tokens, positions = self._rows(start, end)
        hidden = runner.model.forward(tokens, positions, self._attend, LAST_ROWS)
        return self._reach(end, hidden[:1])

    def _step_wide(self, num_whole: int) -> torch.Tensor | None:
        runner, tail, end = self._runner, None, num_whole
        if num_whole < len(self._tokens) < num_whole + CHUNK_TOKENS:
            end = len(self._tokens)
            tail = Tail(
                *self._rows(num_whole, end), end, partial(self._attend_tail, slice(num_whole, end))
            )
        finish_chunk(self._slot, end)
        whole = self._tokens[:num_whole].to(runner.device)
        hidden = runner.wide.run(self._slot, whole, (self._begin, self._hooks.after_layer), tail)
        return self._reach(end, hidden[:1])

    def _rows(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and positions, last position first, as attention wants them, and padded."""
        tokens = torch.zeros(bucket(end - start), dtype=torch.int64)
        tokens[: end - start] = self._tokens[start:end].flip(0)
        positions = torch.arange(end - 1, end - 1 - len(tokens), -1).clamp_(min=start)
        return tokens.to(self._runner.device), positions.to(self._runner.device)

    def _reach(self, end: int, last: torch.Tensor) -> torch.Tensor | None:
        """`last`: hidden states [1, hidden] of position end - 1."""
        self.position = end
        if end < len(self._tokens):
            return None
        return self._runner.model.logits(last.expand(LOGIT_ROWS, -1).contiguous())[0]

    def _begin(self, layer: int) -> None:
        if self._hooks.is_cancelled():
            raise Cancelled(f"prefill cancelled at position {self.position}, layer {layer}")
        if self.position == self._start:
            self._hooks.before_layer(layer)

    def _attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        self._begin(layer)
        start = self.position
        end = min(round_up(start + 1), len(self._tokens))
        self._store(layer, slice(start, end), k, v)
        self._hooks.after_layer(layer, start, end)
        return self._runner.attention.chunk(q, self._slot, layer, end)

    def _attend_tail(self, tail: slice, layer: int, *heads: torch.Tensor) -> torch.Tensor:
        q, k, v = heads
        self._store(layer, tail, k, v)
        return self._runner.attention.chunk(q, self._slot, layer, tail.stop)

    def _store(self, layer: int, span: slice, k: torch.Tensor, v: torch.Tensor) -> None:
        num_rows = span.stop - span.start
        self._slot.keys[layer][span] = k[:num_rows].flip(0)
        self._slot.values[layer][span] = v[:num_rows].flip(0)


def finish_chunk(slot: KvSlot, end: int) -> None:
    """Zero the padding keys after `end`: a masked NaN still poisons a sum, as 0 * NaN is NaN.

    Called before each chunk and decode step; does its work once a chunk.
    """
    padded = round_up(end)
    if slot.finite_tokens < padded:
        slot.kv[:, :, end:padded] = 0
        slot.finite_tokens = padded


assert ROW_BUCKETS[-1] == CHUNK_TOKENS
