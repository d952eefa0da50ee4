"""Attention of a prompt's rows, chunk by chunk; decode/attention.py does single rows alike.

A row's result must not depend on how many rows share the call. The fused kernel works on blocks
of rows whose products round differently when a block is short: measured with torch 2.13 on
AVX-512, head_dim 64 from 4 rows on is equal, 128 in float32 needs 6, 80 in bfloat16 more than
40. So, as in linear.py, row counts are tried once and only good ones run. Keys are padded to the
chunk grid, as in float32 other lengths may round differently; the last rows of a prompt read them
up to a finer grid only, where that was tried to be equal.

Rows run last position first: the mask of each is then that of the row before it moved by one, so
a view of a single line of memory serves all, which a cache keeps (5 % of a long prompt).
"""

from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional

from daemons.engine.arena.kv_arena import KvArena, KvSlot
from daemons.engine.arena.slots import round_up
from daemons.engine.geometry import CHUNK_TOKENS
from daemons.engine.models.config import DecoderConfig
from daemons.engine.probe_record import recall
from daemons.engine.prompt.linear import ROW_BUCKETS

PROBE_CHUNKS = (0, 1, 4)  # keys before the rows, in chunks: the kernel splits keys every 512
FINE_KEYS = 64  # a power of two below a chunk, and what decode forms try too

Probe = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Attention:
    """Masks, and the row counts that may run."""

    def __init__(self, config: DecoderConfig, arena: KvArena, num_positions: int) -> None:
        self.masks = Masks(num_positions, arena.rows)
        self._good_rows = recall(
            f"attention {config.head_dim}",
            tuple[int, ...],
            lambda: try_rows(config.head_dim, arena.rows),
        )
        self._fine_rows = recall(
            f"attention keys {config.head_dim}",
            tuple[int, ...],
            lambda: try_fine_rows(config.head_dim, arena.rows, self._good_rows),
        )

    def rows_to_run(self, num_rows: int) -> int:
        """The smallest good row count that holds `num_rows`."""
        return next((rows for rows in self._good_rows if rows >= num_rows), num_rows)

    def chunk(self, q: torch.Tensor, slot: KvSlot, layer: int, end: int) -> torch.Tensor:
        """Rows [row, head, d] of positions end - 1, end - 2, ... over all keys of their chunk."""
        num_rows = q.shape[0]
        rows = self.rows_to_run(num_rows)
        num_keys = -(-end // FINE_KEYS) * FINE_KEYS if rows in self._fine_rows else round_up(end)
        if rows != num_rows:
            q = functional.pad(q, (0, 0, 0, 0, 0, rows - num_rows))
        keys, values = slot.attention_views(num_keys)[layer]
        attended = functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=self.masks.rows(end, rows, num_keys),
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)[:num_rows].flatten(1)


class Masks:
    """Additive causal masks as views of one table, so that no step builds one."""

    def __init__(self, num_positions: int, like: torch.Tensor) -> None:
        self._size = round_up(num_positions)
        # The CPU kernel adds in float32: a mask of that needs no conversion.
        dtype = like.dtype if like.is_cuda else torch.float32
        self._row = like.new_zeros(2 * self._size + CHUNK_TOKENS, dtype=dtype)
        self._row[self._size :] = float("-inf")

    def rows(self, end: int, num_rows: int, num_keys: int) -> torch.Tensor:
        """[num_rows, num_keys]: the first open up to and including end - 1, each next one less."""
        mask = self._row.as_strided((num_rows, num_keys), (1, 1), self._size - end)
        return mask.clone() if mask.is_cuda else mask  # CUDA kernels want it aligned


def try_rows(head_dim: int, like: torch.Tensor) -> tuple[int, ...]:
    """Row counts whose rows equal those of a whole chunk, bit for bit."""
    masks = Masks((1 + max(PROBE_CHUNKS)) * CHUNK_TOKENS, like)
    good = set(ROW_BUCKETS)
    for chunks in PROBE_CHUNKS:
        num_keys = (chunks + 1) * CHUNK_TOKENS
        mask = masks.rows(num_keys, CHUNK_TOKENS, num_keys)
        for q, k, v in probes(head_dim, num_keys, like):
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


def try_fine_rows(head_dim: int, like: torch.Tensor, good_rows: Sequence[int]) -> tuple[int, ...]:
    """Of these row counts, those whose rows are equal, bit for bit, where keys end soon behind them in their chunk."""
    masks = Masks((1 + max(PROBE_CHUNKS)) * CHUNK_TOKENS, like)
    good = set(good_rows)
    for chunks in PROBE_CHUNKS:
        num_keys = (chunks + 1) * CHUNK_TOKENS
        for end in range(num_keys - CHUNK_TOKENS + FINE_KEYS, num_keys, FINE_KEYS):
            mask = masks.rows(end, CHUNK_TOKENS, num_keys)
            for q, k, v in probes(head_dim, end, like):
                whole_k, whole_v = (
                    functional.pad(x, (0, 0, 0, num_keys - end), value=1) for x in (k, v)
                )
                expected = functional.scaled_dot_product_attention(
                    q, whole_k, whole_v, attn_mask=mask
                )
                good = {
                    rows
                    for rows in good
                    if torch.equal(
                        functional.scaled_dot_product_attention(
                            q[:, :, :rows], k, v, attn_mask=masks.rows(end, rows, end)
                        ),
                        expected[:, :, :rows],
                    )
                }
    return tuple(sorted(good))


def probes(
    head_dim: int, num_keys: int, like: torch.Tensor, num_heads: int = 2, group: int = 1
) -> Iterator[Probe]:
    """q, k and v of which only rounding comes out, made large: one for that of scores, one for that of the sums.

    Keys come in equal pairs with opposite values. In the first the halves of each q and k cancel too; then all weights
    are about the same, and bfloat16 products of such sum up exactly in any order. In the second weights span many
    powers of two, and pairs lie near each other, so that they cancel behind any causal mask.
    Shapes are [1, num_heads * group, chunk, head_dim] for q, [1, num_heads, num_keys, head_dim] for k and v;
    `num_keys` is even.
    """
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, num_heads * group, CHUNK_TOKENS, head_dim, generator=generator)
    k = torch.randn(1, num_heads, num_keys, head_dim, generator=generator)
    v = torch.randn(1, num_heads, num_keys, head_dim, generator=generator)
    half = head_dim // 2
    order = torch.randperm(half, generator=generator)
    # Queries of 300 lift the rounding of a score to where its exponential shows it.
    flat_q, flat_k = 300 * q, k.clone()
    flat_q[..., half:], flat_k[..., half:] = 0, 0
    flat_q[..., half : 2 * half] = -flat_q[..., order]
    flat_k[..., half : 2 * half] = flat_k[..., order]
    anywhere = torch.randperm(num_keys, generator=generator).view(2, -1)
    yield _paired(flat_q, flat_k, v, anywhere, like)
    groups = torch.arange(num_keys) // FINE_KEYS
    near = (groups + torch.rand(num_keys, generator=generator)).argsort()
    yield _paired(8 * q, k, v, near.view(-1, 2).t(), like)


def _paired(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pairs: torch.Tensor, like: torch.Tensor
) -> Probe:
    """`pairs`: [2, num_keys // 2] positions."""
    one, other = pairs
    k, v = k.clone(), v.clone()
    k[:, :, other] = k[:, :, one]
    v[:, :, other] = -v[:, :, one]
    return q.to(like), k.to(like), v.to(like)
