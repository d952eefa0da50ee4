"""Attention of single rows, each over its own sequence, bit-equal to what a prompt's chunk gives.

The cost of a kernel call is packing keys and values, so rows take the cheapest form that equals
the chunk's results bit for bit, tried once at load:
  - keys end at the next multiple of a grid finer than the chunk;
  - all heads share one product over whole token rows: each query stands in its own key head's
    columns and is zero elsewhere. Zeros change no sum, and a token's row is read in one piece.
Neighbouring rows whose slots lie evenly spaced and which read equally many keys share one call:
the kernel still works sequence by sequence, but is entered once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Final

import torch
from torch.nn import functional

from daemons.engine.attention import Attention, Masks, cancelling_probe
from daemons.engine.geometry import CHUNK_TOKENS
from daemons.engine.kv_arena import KvArena, KvSlot
from daemons.engine.models.config import DecoderConfig
from daemons.engine.probe_record import recall
from daemons.engine.slots import round_up

KEY_GRIDS: Final = (64, CHUNK_TOKENS)
MAX_FUSED_HEADS: Final = 16  # a matrix unit's rows: up to here the zeros cost no time
PROBE_KEYS: Final = 1024  # the kernel splits keys every 512
MAX_SHARED_ROWS: Final = (
    16  # of calls that may be shared: with more, the kernel may pack by the batch's size
)

Views = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Span:
    """One decode row: its token stands at `position` of `slot`."""

    slot: KvSlot
    position: int


@dataclass(frozen=True, slots=True)
class DecodeForm:
    """How one row's heads become a kernel call of [1, call head, row, call dim]."""

    num_kv_heads: int
    group: int
    head_dim: int
    num_rows: int  # rows of a call, padding included
    key_grid: int
    is_fused: bool

    def num_keys(self, position: int) -> int:
        """Keys a row at `position` reads."""
        return (position // self.key_grid + 1) * self.key_grid

    def new_queries(self, num_rows: int, like: torch.Tensor) -> torch.Tensor:
        heads, dim = self.num_kv_heads, self.head_dim
        shape = (1, self.num_rows, heads * dim) if self.is_fused else (heads, self.num_rows, dim)
        return like.new_zeros(num_rows, *shape)

    def by_head(self, calls: torch.Tensor) -> torch.Tensor:
        """The meaningful part of queries or results, as a view [row, kv_head, group, head_dim]."""
        if not self.is_fused:
            return calls[:, :, : self.group]
        heads = self.num_kv_heads
        split = calls[:, 0, : heads * self.group].view(
            len(calls), heads, self.group, heads, self.head_dim
        )
        return split.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)

    def views(self, arena_rows: torch.Tensor, run: "Run") -> Views:
        """Each layer's keys and values of a run: [sequence, call head, key, call dim]."""
        geometry, row = run.slot.geometry, self.num_kv_heads * self.head_dim
        heads, dim = (1, row) if self.is_fused else (self.num_kv_heads, self.head_dim)
        half = run.slot.capacity_tokens * row
        halves = arena_rows.as_strided(
            (geometry.num_layers, 2, run.length, heads, run.num_keys, dim),
            (2 * half, half, run.step_rows * row, self.head_dim, row, 1),
            arena_rows.storage_offset() + run.slot.arena_row(0, 0, 0) * row,
        )
        return [(layer[0], layer[1]) for layer in halves]

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=self.head_dim**-0.5
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring rows of a batch that share calls; the key of its views while slots live."""

    slot: KvSlot  # of the first row
    length: int
    step_rows: int  # from one slot to the next, in arena rows
    num_keys: int

    def takes(self, span: Span, num_keys: int) -> "Run | None":
        """This run with one more row, if it fits."""
        last = self.slot.arena_row(0, 0, 0) + (self.length - 1) * self.step_rows
        step_rows = span.slot.arena_row(0, 0, 0) - last
        fits = (
            step_rows > 0
            and (self.length == 1 or step_rows == self.step_rows)
            and (num_keys, span.slot.capacity_tokens) == (self.num_keys, self.slot.capacity_tokens)
        )
        return Run(self.slot, self.length + 1, step_rows, num_keys) if fits else None


class DecodeAttention:
    """The form that decode takes on this machine, and what its steps share."""

    def __init__(self, config: DecoderConfig, arena: KvArena, attention: Attention) -> None:
        self.arena_rows = arena.rows
        self.num_layers = config.num_layers
        self.masks = attention.masks
        self.form = recall(
            f"decode {config.num_heads} {config.num_kv_heads} {config.head_dim}",
            DecodeForm,
            lambda: choose_form(config, attention, arena.rows),
        )
        # Of the step before: making them costs a step more than all its other bookkeeping.
        self._views: dict[Run, Views] = {}

    def step(self, spans: Sequence[Span]) -> "DecodeStep":
        runs = self.runs(spans)
        self._views = {
            run: self._views.get(run) or self.form.views(self.arena_rows, run) for run in runs
        }
        return DecodeStep(self, spans, [(run, self._views[run]) for run in runs])

    def runs(self, spans: Sequence[Span]) -> list[Run]:
        """The spans, in order, as few runs."""
        can_share = self.form.num_rows <= MAX_SHARED_ROWS
        runs: list[Run] = []
        for span in spans:
            num_keys = self.form.num_keys(span.position)
            longer = runs[-1].takes(span, num_keys) if runs and can_share else None
            if longer is None:
                runs.append(Run(span.slot, 1, 0, num_keys))
            else:
                runs[-1] = longer
        return runs


class DecodeStep:
    """Attention of one decode batch: each row over its own slot, keys read in place."""

    def __init__(
        self, shared: DecodeAttention, spans: Sequence[Span], runs: list[tuple[Run, Views]]
    ) -> None:
        self._arena_rows = shared.arena_rows
        self._form = form = shared.form
        self._num_rows = len(spans)
        calls = form.new_queries(len(spans), self._arena_rows)
        self._queries = form.by_head(calls)
        ends = list(accumulate(run.length for run, _ in runs))
        self._calls = [
            calls[end - run.length : end] for end, (run, _) in zip(ends, runs, strict=True)
        ]
        self._views = [views for _, views in runs]
        self._masks: list[torch.Tensor] = []
        of_rows = iter(spans)
        for run, _ in runs:
            masks = [
                shared.masks.rows(span.position + 1, 1, run.num_keys)
                for span in islice(of_rows, run.length)
            ]
            mask = torch.cat(masks) if run.length > 1 else masks[0]
            self._masks.append(mask[:, None, None].expand(-1, -1, form.num_rows, -1))
        self._targets = torch.tensor(
            [
                [s.slot.arena_row(layer, half, s.position) for half in range(2) for s in spans]
                for layer in range(shared.num_layers)
            ],
            device=self._arena_rows.device,
        )

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store the rows' k and v, then attend; rows of `q` beyond the batch are padding."""
        num_rows = self._num_rows
        written = torch.cat((k[:num_rows], v[:num_rows]))
        self._arena_rows.index_copy_(0, self._targets[layer], written)
        self._queries.copy_(q[:num_rows].view(self._queries.shape))
        attended = [
            self._form.attend(calls, *views[layer], mask)
            for calls, views, mask in zip(self._calls, self._views, self._masks, strict=True)
        ]
        out = self._form.by_head(torch.cat(attended) if len(attended) > 1 else attended[0])
        out = out.flatten(1)
        return (
            functional.pad(out, (0, 0, 0, q.shape[0] - num_rows)) if q.shape[0] > num_rows else out
        )


def choose_form(config: DecoderConfig, attention: Attention, like: torch.Tensor) -> DecodeForm:
    """The cheapest form whose rows equal a chunk's on this machine; else one like a chunk's."""
    heads, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
    ways = [(False, attention.rows_to_run(group))]
    if heads > 1 and config.num_heads <= MAX_FUSED_HEADS:
        ways = [(True, config.num_heads), (True, -(-config.num_heads // 4) * 4), *ways]
    forms = [
        DecodeForm(heads, group, config.head_dim, rows, grid, is_fused)
        for is_fused, rows in ways
        for grid in KEY_GRIDS
    ]
    like_a_chunk = forms[-1]
    for num_keys in range(KEY_GRIDS[0], PROBE_KEYS + 1, KEY_GRIDS[0]):
        probe = RowProbe(heads, group, config.head_dim, num_keys, like)
        forms = [form for form in forms if probe.passes(form)] or [like_a_chunk]
    return forms[0]


class RowProbe:
    """One row with `num_keys` open keys, as it comes out of its whole chunk."""

    def __init__(
        self, num_kv_heads: int, group: int, head_dim: int, num_keys: int, like: torch.Tensor
    ) -> None:
        self._position, chunk_end = num_keys - 1, round_up(num_keys)
        q, k, v = cancelling_probe(head_dim, num_keys, like, num_kv_heads, group)
        k, v = (functional.pad(x, (0, 0, 0, chunk_end - num_keys), value=1) for x in (k, v))
        self._masks = Masks(chunk_end, like)
        mask = self._masks.rows(chunk_end, CHUNK_TOKENS, chunk_end)
        whole = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        row = chunk_end - num_keys  # a chunk's rows run last position first
        shape = (1, num_kv_heads, group, head_dim)
        self._query, self._expected = q[:, :, row].reshape(shape), whole[:, :, row].reshape(shape)
        # [token, kv_head, head_dim], as they lie in a slot.
        self._k, self._v = (x[0].transpose(0, 1).contiguous() for x in (k, v))

    def passes(self, form: DecodeForm) -> bool:
        calls = form.new_queries(1, self._k)
        form.by_head(calls).copy_(self._query)
        num_keys = form.num_keys(self._position)
        keys, values = (
            x[:num_keys].flatten(1)[None] if form.is_fused else x[:num_keys].transpose(0, 1)
            for x in (self._k, self._v)
        )
        mask = self._masks.rows(self._position + 1, 1, num_keys).expand(form.num_rows, -1)
        out = form.by_head(form.attend(calls, keys[None], values[None], mask))
        return torch.equal(out, self._expected)
