"""Runs one model over the KV arena: prompts chunk by chunk, decode batches row by row.

Reuse never changes a token. For one model, dtype and thread count, KV and logits at a position
are bit-equal whatever prefix was reused and whatever shares the batch, because
  - chunks end at fixed multiples of the grid, counted from position 0;
  - a row attends to keys padded (and masked) to the end of its chunk;
  - matrix products run only at row counts tried to give equal rows (see linear.py).
Measured (torch 2.13 CPU, AVX-512, 1 thread; SmolLM2-135M and random models of each family, float32
and bfloat16): decode steps follow the same rules, and the KV they write equals bit for bit what
prefill of the same tokens writes. It costs 7 % of a decode step, for the one product
(mlp.down_proj) whose kernel differs below 37 rows. The canary decides on the machine at hand.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch.nn import functional

from daemons.core.errors import ConfigError, McError
from daemons.engine.checkpoint import open_weights, read_json
from daemons.engine.geometry import CHUNK_TOKENS, KvDtype, KvGeometry
from daemons.engine.kv_arena import TORCH_DTYPES, KvArena, KvSlot, round_up
from daemons.engine.linear import ROW_BUCKETS, bucket, can_pack
from daemons.engine.models import read_decoder_config
from daemons.engine.models.decoder import LOGIT_ROWS, Decoder


class Cancelled(McError):
    """The request was given up while its prompt was being computed."""

    code = "cancelled"


class PrefillHooks(Protocol):
    """What a prefill tells its owner; called on the thread that runs the model."""

    def before_layer(self, layer: int) -> None:
        """Return once the reused prefix of `layer` is in the slot; first chunk only."""

    def after_layer(self, layer: int, start: int, end: int) -> None:
        """KV of `layer` for positions [start, end) is in the slot and final."""

    def is_cancelled(self) -> bool:
        """Asked between layers."""


class NoHooks:
    """For callers without reuse, transfer or cancellation."""

    def before_layer(self, layer: int) -> None: ...

    def after_layer(self, layer: int, start: int, end: int) -> None: ...

    def is_cancelled(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One step of one sequence: `token` stands at `position`, its KV is written there."""

    slot: KvSlot
    token: int
    position: int


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
        with torch.inference_mode(), open_weights(model_dir, self.dtype, device) as weights:
            self.model = Decoder(config, weights, self.max_positions)
            self.masks = Masks(self.max_positions, self.dtype, device)

    def numerics_id(self) -> str:
        """Names everything that decides how results round; equal ids may share KV."""
        isa = (
            torch.backends.cpu.get_cpu_capability()
            if self.device == "cpu"
            else torch.cuda.get_device_name()
        )
        kernels = "packed" if self.device == "cpu" and can_pack() else "plain"
        return (
            f"torch={torch.__version__} isa={isa} kernels={kernels} threads={self.threads} "
            f"grid={CHUNK_TOKENS} dtype={self.arena.geometry.dtype}"
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
        """The same in steps of one chunk, so that prompts may take turns."""
        if not 0 <= start < len(tokens) <= min(slot.capacity_tokens, self.max_positions):
            raise ValueError(
                f"cannot prefill [{start}, {len(tokens)}) of a slot of {slot.capacity_tokens}, "
                f"model limit {self.max_positions}"
            )
        return Prefill(self, slot, torch.tensor(tokens), start, hooks or NoHooks())

    def enter(self) -> None:
        """Hold this thread to the runner's thread count: OpenMP keeps it for each thread."""
        if threading.get_ident() != self._entered_by:
            torch.set_num_threads(self.threads)
            self._entered_by = threading.get_ident()

    @torch.inference_mode()
    def decode(self, rows: Sequence[DecodeRow]) -> torch.Tensor:
        """One token for each row; float32 logits [row, vocab]. Slots must be distinct."""
        for row in rows:
            assert row.position < min(row.slot.capacity_tokens, self.max_positions)
            finish_chunk(row.slot, row.position + 1)
        self.enter()
        step = DecodeStep(self, rows)
        padding = [0] * (bucket(len(rows)) - len(rows))
        hidden = self.model.forward(
            torch.tensor([row.token for row in rows] + padding, device=self.device),
            torch.tensor([row.position for row in rows] + padding, device=self.device),
            step.attend,
        )
        return self.model.logits(hidden)[: len(rows)]


class DecodeStep:
    """Attention of one decode batch: each row over its own slot, keys read in place."""

    def __init__(self, runner: Runner, rows: Sequence[DecodeRow]) -> None:
        config = runner.config
        self._arena_rows = runner.arena.rows
        self._group = config.num_heads // config.num_kv_heads
        # Heads that share keys become rows of one product, in fours: a single row takes a vector
        # kernel that rounds differently, and this way each key is read once.
        padded_group = -(-self._group // 4) * 4
        self._queries = torch.zeros(
            (len(rows), config.num_kv_heads, padded_group, config.head_dim),
            dtype=runner.dtype,
            device=runner.device,
        )
        self._views: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
        self._masks: list[torch.Tensor] = []
        for row in rows:
            num_keys = round_up(row.position + 1)
            self._views.append(row.slot.attention_views(num_keys))
            mask = runner.masks.row(row.position, num_keys)
            self._masks.append(mask.expand(padded_group, -1))
        self._targets = torch.tensor(
            [
                [row.slot.arena_row(layer, half, row.position) for half in range(2) for row in rows]
                for layer in range(config.num_layers)
            ],
            device=runner.device,
        )

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store the rows' k and v, then attend; rows of `q` beyond the batch are padding."""
        num_rows = len(self._views)
        written = torch.cat((k[:num_rows], v[:num_rows]))
        self._arena_rows.index_copy_(0, self._targets[layer], written)
        self._queries[:, :, : self._group] = q[:num_rows].reshape(
            num_rows, -1, self._group, q.shape[2]
        )
        attended = [
            functional.scaled_dot_product_attention(query, *views[layer], attn_mask=mask)
            for query, views, mask in zip(
                self._queries.unsqueeze(1), self._views, self._masks, strict=True
            )
        ]
        out = torch.cat(attended)[:, :, : self._group].flatten(1)
        return functional.pad(out, (0, 0, 0, q.shape[0] - num_rows))


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
        """Compute up to the next chunk boundary; logits [vocab] after the last. Cost: one chunk."""
        runner, start = self._runner, self.position
        runner.enter()
        end = min(round_up(start + 1), len(self._tokens))
        rows = end - start
        finish_chunk(self._slot, end)
        tokens = torch.zeros(bucket(rows), dtype=torch.int64)
        tokens[:rows] = self._tokens[start:end]
        positions = torch.arange(start, start + len(tokens)).clamp_(max=end - 1)
        hidden = runner.model.forward(
            tokens.to(runner.device), positions.to(runner.device), self._attend
        )
        self.position = end
        if end < len(self._tokens):
            return None
        last = hidden[rows - 1 : rows].expand(LOGIT_ROWS, -1).contiguous()
        return runner.model.logits(last)[0]

    def _attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        if self._hooks.is_cancelled():
            raise Cancelled(f"prefill cancelled at position {self.position}, layer {layer}")
        if self.position == self._start:
            self._hooks.before_layer(layer)
        start, num_keys = self.position, round_up(self.position + 1)
        end = min(num_keys, len(self._tokens))
        keys, values = self._slot.keys[layer], self._slot.values[layer]
        keys[start:end] = k[: end - start]
        values[start:end] = v[: end - start]
        self._hooks.after_layer(layer, start, end)
        attended = functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[:num_keys].transpose(0, 1)[None],
            values[:num_keys].transpose(0, 1)[None],
            attn_mask=self._runner.masks.chunk(start, q.shape[0], num_keys),
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1).flatten(1)


class Masks:
    """Additive causal masks as views of two tables, so that no step builds one."""

    def __init__(self, num_positions: int, dtype: torch.dtype, device: str) -> None:
        self._size = round_up(num_positions)
        self._row = torch.zeros(2 * self._size, dtype=dtype, device=device)
        self._row[self._size :] = float("-inf")
        self._chunk = self._make_chunk(4 * CHUNK_TOKENS)

    def _make_chunk(self, num_keys: int) -> torch.Tensor:
        """A chunk's rows, and as many padding rows, against all earlier keys and its own."""
        table = self._row.new_zeros(2 * CHUNK_TOKENS, num_keys)
        table[:CHUNK_TOKENS, -CHUNK_TOKENS:].fill_(float("-inf")).triu_(1)
        return table

    def row(self, position: int, num_keys: int) -> torch.Tensor:
        """[num_keys]: open up to and including `position`."""
        first = self._size - 1 - position
        return self._row[first : first + num_keys]

    def chunk(self, start: int, num_rows: int, num_keys: int) -> torch.Tensor:
        """[num_rows, num_keys] for rows from `start` on; rows past the chunk see everything."""
        if num_keys > self._chunk.shape[1]:
            self._chunk = self._make_chunk(2 * num_keys)
        first = start % CHUNK_TOKENS
        return self._chunk[first : first + num_rows, self._chunk.shape[1] - num_keys :]


def finish_chunk(slot: KvSlot, end: int) -> None:
    """Zero the padding keys after `end`: a masked NaN still poisons a sum, as 0 * NaN is NaN.

    Called before each chunk and decode step; does its work once a chunk.
    """
    padded = round_up(end)
    if slot.finite_tokens < padded:
        slot.kv[:, :, end:padded] = 0
        slot.finite_tokens = padded


def read_geometry(model_dir: Path, dtype: KvDtype, block_tokens: int = 64) -> KvGeometry:
    """The KV geometry of a model directory, to size an arena before loading the model."""
    config = read_decoder_config(read_json(model_dir / "config.json"))
    return KvGeometry(config.num_layers, config.num_kv_heads, config.head_dim, dtype, block_tokens)


assert ROW_BUCKETS[-1] == CHUNK_TOKENS
