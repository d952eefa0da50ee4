"""Attention of a decode step: a few positions of each sequence, bit-equal to what a prompt's chunk gives.

Neighbouring sequences whose slots lie evenly spaced, which read equally many keys and have equally many
positions, share one call: the kernel still works sequence by sequence, but is entered once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import torch
from torch.nn import functional

from daemons.engine.arena.kv_arena import KvArena, KvSlot
from daemons.engine.decode.forms import DecodeForm, choose_forms
from daemons.engine.models.config import DecoderConfig
from daemons.engine.probe_record import recall
from daemons.engine.prompt.attention import Attention

MAX_SHARED_ROWS: Final = (
    16  # of calls that may be shared: with more, the kernel may pack by the batch's size
)

Views = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence in a step: its tokens stand at `position` of `slot` and behind, within one chunk."""

    slot: KvSlot
    position: int
    num_positions: int = 1

    @property
    def last(self) -> int:
        return self.position + self.num_positions - 1


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring spans of a batch that share calls; the key of its views while slots live."""

    slot: KvSlot  # of the first span
    length: int
    step_rows: int  # from one slot to the next, in arena rows
    num_keys: int
    num_positions: int = 1

    def takes(self, span: Span, num_keys: int) -> "Run | None":
        """This run with one more span, if it fits."""
        last = self.slot.arena_row(0, 0, 0) + (self.length - 1) * self.step_rows
        step_rows = span.slot.arena_row(0, 0, 0) - last
        fits = (
            step_rows > 0
            and (self.length == 1 or step_rows == self.step_rows)
            and (num_keys, span.slot.capacity_tokens) == (self.num_keys, self.slot.capacity_tokens)
            and span.num_positions == self.num_positions
        )
        return (
            Run(self.slot, self.length + 1, step_rows, num_keys, self.num_positions)
            if fits
            else None
        )


class DecodeAttention:
    """The forms that decode takes on this machine, and what its steps share."""

    def __init__(self, config: DecoderConfig, arena: KvArena, attention: Attention) -> None:
        self.arena_rows = arena.rows
        self.masks = attention.masks
        self.forms = recall(
            f"decode {config.num_heads} {config.num_kv_heads} {config.head_dim}",
            dict[int, DecodeForm],
            lambda: choose_forms(config, attention, arena.rows),
        )
        self.halves = torch.arange(2 * config.num_layers, device=arena.rows.device)[:, None]
        # Of the step before: making them costs a step more than all its other bookkeeping.
        self._views: dict[Run, Views] = {}

    def step(self, spans: Sequence[Span]) -> "DecodeStep":
        """Spans of equally many positions should be neighbours."""
        runs = self.runs(spans)
        self._views = {
            run: self._views.get(run)
            or run_views(self.forms[run.num_positions], self.arena_rows, run)
            for run in runs
        }
        return DecodeStep(self, spans, [(run, self._views[run]) for run in runs])

    def runs(self, spans: Sequence[Span]) -> list[Run]:
        """The spans, in order, as few runs."""
        runs: list[Run] = []
        for span in spans:
            form = self.forms[span.num_positions]
            num_keys = form.num_keys(span.last)
            can_share = runs and form.num_rows <= MAX_SHARED_ROWS
            longer = runs[-1].takes(span, num_keys) if can_share else None
            if longer is None:
                runs.append(Run(span.slot, 1, 0, num_keys, span.num_positions))
            else:
                runs[-1] = longer
        return runs


def run_views(form: DecodeForm, arena_rows: torch.Tensor, run: Run) -> Views:
    """Each layer's keys and values of a run: [sequence, call head, key, call dim]."""
    geometry, row = run.slot.geometry, form.num_kv_heads * form.head_dim
    heads, dim = (1, row) if form.is_fused else (form.num_kv_heads, form.head_dim)
    half = run.slot.capacity_tokens * row
    halves = arena_rows.as_strided(
        (geometry.num_layers, 2, run.length, heads, run.num_keys, dim),
        (2 * half, half, run.step_rows * row, form.head_dim, row, 1),
        arena_rows.storage_offset() + run.slot.arena_row(0, 0, 0) * row,
    )
    return [(layer[0], layer[1]) for layer in halves]


class DecodeStep:
    """Attention of one decode batch: each span over its own slot, keys read in place."""

    def __init__(
        self, shared: DecodeAttention, spans: Sequence[Span], runs: list[tuple[Run, Views]]
    ) -> None:
        self._arena_rows = like = shared.arena_rows
        self._groups: list[_Group] = []
        first_span = first_row = 0
        for num_positions, same in groupby(runs, key=lambda each: each[0].num_positions):
            group = list(same)
            num_spans = sum(run.length for run, _ in group)
            end_row = first_row + num_spans * num_positions
            self._groups.append(
                _Group(
                    shared, spans[first_span : first_span + num_spans], group, (first_row, end_row)
                )
            )
            first_span, first_row = first_span + num_spans, end_row
        self._num_rows = first_row
        rows = [(s.slot, s.position + more) for s in spans for more in range(s.num_positions)]
        firsts = torch.tensor([slot.arena_row(0, 0, at) for slot, at in rows], device=like.device)
        steps = torch.tensor([slot.capacity_tokens for slot, _ in rows], device=like.device)
        self._targets = (firsts + shared.halves * steps).view(-1, 2 * first_row)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store the rows' k and v, then attend; rows of `q` beyond the batch are padding."""
        num_rows = self._num_rows
        written = torch.cat((k[:num_rows], v[:num_rows]))
        self._arena_rows.index_copy_(0, self._targets[layer], written)
        attended = [group.attend(layer, q) for group in self._groups]
        out = torch.cat(attended) if len(attended) > 1 else attended[0]
        return (
            functional.pad(out, (0, 0, 0, q.shape[0] - num_rows)) if q.shape[0] > num_rows else out
        )


class _Group:
    """Spans of equally many positions, one behind another; `rows` of the batch are theirs."""

    def __init__(
        self,
        shared: DecodeAttention,
        spans: Sequence[Span],
        runs: list[tuple[Run, Views]],
        rows: tuple[int, int],
    ) -> None:
        self._rows = slice(*rows)
        self._form = form = shared.forms[spans[0].num_positions]
        calls = form.new_queries(len(spans), shared.arena_rows)
        self._queries = form.by_head(calls)
        self._runs: list[tuple[torch.Tensor, Views, torch.Tensor]] = []
        first = 0
        for run, views in runs:
            end = first + run.length
            masks = [form.mask(shared.masks, s.position, run.num_keys) for s in spans[first:end]]
            mask = torch.cat(masks) if run.length > 1 else masks[0]
            self._runs.append((calls[first:end], views, mask))
            first = end

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        self._queries.copy_(q[self._rows].view(self._queries.shape))
        attended = [
            self._form.attend(calls, *views[layer], mask) for calls, views, mask in self._runs
        ]
        out = self._form.by_head(torch.cat(attended) if len(attended) > 1 else attended[0])
        return out.flatten(0, 1).flatten(1)
