"""Attention of a prompt's rows, chunk by chunk; decode_attention.py does single rows alike.

A row's result must not depend on how many rows share the call. The fused kernel works on blocks
of rows whose products round differently when a block is short: measured with torch 2.13 on
AVX-512, head_dim 64 from 4 rows on is equal, 128 in float32 needs 6, 80 in bfloat16 more than
40. So, as in linear.py, row counts are tried once and only good ones run. Keys are padded to the
chunk grid: in float32 other lengths round differently.
"""

import torch
from torch.nn import functional

from daemons.engine.geometry import CHUNK_TOKENS
from daemons.engine.kv_arena import KvArena, KvSlot, round_up
from daemons.engine.linear import ROW_BUCKETS
from daemons.engine.models.config import DecoderConfig

PROBE_CHUNKS = (0, 1, 4)  # keys before the rows, in chunks: the kernel splits keys every 512


class Attention:
    """Masks, and the row counts that may run."""

    def __init__(self, config: DecoderConfig, arena: KvArena, num_positions: int) -> None:
        self.masks = Masks(num_positions, arena.rows)
        self._good_rows = try_rows(config.head_dim, arena.rows)

    def rows_to_run(self, num_rows: int) -> int:
        """The smallest good row count that holds `num_rows`."""
        return next((rows for rows in self._good_rows if rows >= num_rows), num_rows)

    def chunk(self, q: torch.Tensor, slot: KvSlot, layer: int, start: int) -> torch.Tensor:
        """Rows [row, head, d] from `start` on, in one chunk, over all keys up to its end."""
        num_rows, num_keys = q.shape[0], round_up(start + 1)
        rows = self.rows_to_run(num_rows)
        if rows != num_rows:
            q = functional.pad(q, (0, 0, 0, 0, 0, rows - num_rows))
        keys, values = slot.attention_views(num_keys)[layer]
        attended = functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=self.masks.chunk(start, rows, num_keys),
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)[:num_rows].flatten(1)


class Masks:
    """Additive causal masks as views of two tables, so that no step builds one."""

    def __init__(self, num_positions: int, like: torch.Tensor) -> None:
        self._size = round_up(num_positions)
        self._row = like.new_zeros(2 * self._size)
        self._row[self._size :] = float("-inf")
        self._chunk = self._make_chunk(4 * CHUNK_TOKENS)

    def row(self, position: int, num_keys: int) -> torch.Tensor:
        """[num_keys]: open up to and including `position`."""
        first = self._size - 1 - position
        row = self._row[first : first + num_keys]
        return row.clone() if row.is_cuda else row  # CUDA kernels want it aligned

    def chunk(self, start: int, num_rows: int, num_keys: int) -> torch.Tensor:
        """[num_rows, num_keys] for rows from `start` on; rows past the chunk see everything."""
        if num_keys > self._chunk.shape[1]:
            self._chunk = self._make_chunk(2 * num_keys)
        first = start % CHUNK_TOKENS
        return self._chunk[first : first + num_rows, self._chunk.shape[1] - num_keys :]

    def _make_chunk(self, num_keys: int) -> torch.Tensor:
        """A chunk's rows, and as many padding rows, against all earlier keys and its own."""
        table = self._row.new_zeros(2 * CHUNK_TOKENS, num_keys)
        table[:CHUNK_TOKENS, -CHUNK_TOKENS:].fill_(float("-inf")).triu_(1)
        return table


def try_rows(head_dim: int, like: torch.Tensor) -> tuple[int, ...]:
    """Row counts whose rows equal those of a whole chunk, bit for bit."""
    masks = Masks(CHUNK_TOKENS, like)
    good = set(ROW_BUCKETS)
    for chunks in PROBE_CHUNKS:
        start, num_keys = chunks * CHUNK_TOKENS, (chunks + 1) * CHUNK_TOKENS
        q, k, v = cancelling_probe(head_dim, num_keys, like)
        mask = masks.chunk(start, CHUNK_TOKENS, num_keys)
        expected = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        good = {
            rows
            for rows in good
            if torch.equal(
                functional.scaled_dot_product_attention(
                    q[:, :, :rows], k, v, attn_mask=mask[:rows]
                ),
                expected[:, :, :rows],
            )
        }
    return tuple(sorted(good))


def cancelling_probe(
    head_dim: int, num_keys: int, like: torch.Tensor, num_heads: int = 2, group: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v whose exact scores and sums are zero: what comes out is rounding, made large.

    Halves of each q and k cancel, and keys come in equal pairs with opposite values. Shapes are
    [1, num_heads * group, chunk, head_dim] for q, [1, num_heads, num_keys, head_dim] for k and v.
    """
    generator = torch.Generator().manual_seed(0)
    half = head_dim // 2
    order = torch.randperm(half, generator=generator)
    # Queries of 300 lift the rounding of a score to where its exponential shows it.
    q = torch.zeros(1, num_heads * group, CHUNK_TOKENS, head_dim)
    q[..., :half] = 300 * torch.randn(*q.shape[:3], half, generator=generator)
    k = torch.zeros(1, num_heads, num_keys, head_dim)
    k[..., :half] = torch.randn(*k.shape[:3], half, generator=generator)
    v = torch.randn(1, num_heads, num_keys, head_dim, generator=generator)
    one, other = torch.randperm(num_keys, generator=generator).view(2, -1)
    k[:, :, other] = k[:, :, one]
    v[:, :, other] = -v[:, :, one]
    q[..., half : 2 * half] = -q[..., order]
    k[..., half : 2 * half] = k[..., order]
    return q.to(like), k.to(like), v.to(like)
