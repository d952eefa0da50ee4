"""The kernel calls that attention of decode may take, tried at load to give the bits of a prompt's chunk.

The cost of a call is packing keys and values, so rows take the cheapest form that equals the
chunk's results bit for bit:
  - keys end at the next multiple of a grid finer than the chunk;
  - all heads share one product over whole token rows: each query stands in its own key head's
    columns and is zero elsewhere. Zeros change no sum, and a token's row is read in one piece;
  - neighbouring positions of one sequence share a call, so that its keys are read once for all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from daemons.engine.arena.slots import round_up
from daemons.engine.geometry import CHUNK_TOKENS
from daemons.engine.models.config import DecoderConfig
from daemons.engine.prompt.attention import Attention, Masks, Probe, probes

KEY_GRIDS: Final = (64, CHUNK_TOKENS)
POSITIONS: Final = (1, 2, 4, 8, 16)
"""How many positions of a sequence may share a call: few, so that each can be tried."""
MAX_FUSED_HEADS: Final = 16  # a matrix unit's rows: up to here the zeros cost no time
MAX_FUSED_ROWS: Final = 32  # the kernel's block of rows: with more it reads the keys once more
PROBE_KEYS: Final = 1024  # the kernel splits keys every 512
STRADDLE: Final = 62
"""Of keys that the first of several positions does not see: those behind it lie in the cell before."""


@dataclass(frozen=True, slots=True)
class DecodeForm:
    """How some positions of a sequence become a kernel call of [1, call head, row, call dim]."""

    num_kv_heads: int
    group: int
    head_dim: int
    num_rows: int  # rows of a call, padding included
    key_grid: int
    is_fused: bool
    num_positions: int = 1

    @property
    def rows_a_position(self) -> int:
        return self.group * (self.num_kv_heads if self.is_fused else 1)

    def num_keys(self, position: int) -> int:
        """Keys that rows up to `position` read."""
        return (position // self.key_grid + 1) * self.key_grid

    def new_queries(self, num_calls: int, like: torch.Tensor) -> torch.Tensor:
        heads, dim = self.num_kv_heads, self.head_dim
        shape = (1, self.num_rows, heads * dim) if self.is_fused else (heads, self.num_rows, dim)
        return like.new_zeros(num_calls, *shape)

    def by_head(self, calls: torch.Tensor) -> torch.Tensor:
        """The meaningful part of queries or results, as a view [call, position, kv_head, group, head_dim]."""
        used = calls[:, :, : self.num_positions * self.rows_a_position]
        if not self.is_fused:
            split = used.view(
                len(calls), self.num_kv_heads, self.num_positions, self.group, self.head_dim
            )
            return split.transpose(1, 2)
        heads = self.num_kv_heads
        split = used[:, 0].view(
            len(calls), self.num_positions, heads, self.group, heads, self.head_dim
        )
        return split.diagonal(dim1=2, dim2=4).permute(0, 1, 4, 2, 3)

    def mask(self, masks: Masks, position: int, num_keys: int) -> torch.Tensor:
        """[1, 1, row, key] for positions from `position` on."""
        last = position + self.num_positions - 1
        rows = masks.rows(last + 1, self.num_positions, num_keys)  # the last position first
        if self.num_positions > 1:
            row = torch.arange(self.num_rows, device=rows.device).div_(
                self.rows_a_position, rounding_mode="floor"
            )
            rows = rows[(self.num_positions - 1 - row).clamp_(min=0)]
        return rows.expand(self.num_rows, -1)[None, None]

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=self.head_dim**-0.5
        )


def choose_forms(
    config: DecoderConfig, attention: Attention, like: torch.Tensor
) -> dict[int, DecodeForm]:
    """By number of positions, the cheapest form whose rows equal a chunk's on this machine.

    Of one position there always is one, if need be like a chunk's; other numbers may be missing.
    """
    forms = {number: list(_candidates(config, attention, number)) for number in POSITIONS}
    like_a_chunk = forms[1][-1]
    heads, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
    for num_keys in range(KEY_GRIDS[0], PROBE_KEYS + 1, KEY_GRIDS[0]):
        for end in (num_keys - STRADDLE, num_keys):
            for each in probes(config.head_dim, end, like, heads, group):
                probe = RowProbe(each)
                for number in POSITIONS:
                    if number <= probe.num_rows:
                        forms[number] = [form for form in forms[number] if probe.passes(form)]
    chosen = {number: tried[0] for number, tried in forms.items() if tried}
    return {1: like_a_chunk} | chosen


def _candidates(
    config: DecoderConfig, attention: Attention, num_positions: int
) -> Iterator[DecodeForm]:
    heads, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
    fused_rows = config.num_heads * num_positions
    ways = [(False, attention.rows_to_run(group * num_positions))]
    if heads > 1 and config.num_heads <= MAX_FUSED_HEADS and fused_rows <= MAX_FUSED_ROWS:
        ways = [(True, fused_rows), (True, -(-fused_rows // 4) * 4), *ways]
    for is_fused, rows in ways:
        for grid in KEY_GRIDS:
            yield DecodeForm(
                heads, group, config.head_dim, rows, grid, is_fused, num_positions=num_positions
            )


class RowProbe:
    """The last rows of the probe's keys, as they come out of their whole chunk; `num_rows` of them."""

    def __init__(self, probe: Probe) -> None:
        q, k, v = probe
        _, num_kv_heads, num_keys, head_dim = k.shape
        group = q.shape[1] // num_kv_heads
        self._end, chunk_end = num_keys, round_up(num_keys)
        k, v = (functional.pad(x, (0, 0, 0, chunk_end - num_keys), value=1) for x in (k, v))
        self._masks = Masks(chunk_end, k)
        mask = self._masks.rows(chunk_end, CHUNK_TOKENS, chunk_end)
        whole = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        first = chunk_end - num_keys  # a chunk's rows run last position first
        self._queries, self._expected = (
            x[0, :, first : first + POSITIONS[-1]]
            .flip(1)
            .transpose(0, 1)
            .reshape(-1, num_kv_heads, group, head_dim)
            for x in (q, whole)
        )
        self.num_rows = len(self._queries)
        # [token, kv_head, head_dim], as they lie in a slot.
        self._k, self._v = (x[0].transpose(0, 1).contiguous() for x in (k, v))

    def passes(self, form: DecodeForm) -> bool:
        calls = form.new_queries(1, self._k)
        form.by_head(calls).copy_(self._queries[-form.num_positions :])
        num_keys = form.num_keys(self._end - 1)
        keys, values = (
            x[:num_keys].flatten(1)[None] if form.is_fused else x[:num_keys].transpose(0, 1)
            for x in (self._k, self._v)
        )
        mask = form.mask(self._masks, self._end - form.num_positions, num_keys)
        out = form.by_head(form.attend(calls, keys[None], values[None], mask))
        return torch.equal(out[0], self._expected[-form.num_positions :])
