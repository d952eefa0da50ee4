"""A fresh prompt in one pass, layer by layer; bit-equal to chunk by chunk, and faster.

A layer's weights are read once for all rows, and one causal attention call serves all whole chunks, which packs keys
once and needs no mask; what is left of the last chunk attends as ever. Products run a chunk or two at a time. Whether
the one call rounds like the chunks' calls is tried at load; where it does not, prompts go chunk by chunk.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from daemons.engine.arena.kv_arena import KvSlot
from daemons.engine.geometry import CHUNK_TOKENS
from daemons.engine.models.config import DecoderConfig
from daemons.engine.models.decoder import LAST_ROWS, Attend, Decoder
from daemons.engine.probe_record import recall
from daemons.engine.prompt.attention import Attention, Masks, probes

# Bounds the memory of a pass: a few rows of hidden states a token.
MAX_CHUNKS: Final = 32
# With AVX2 alone no such call is equal, in either dtype: prompts go chunk by chunk there.
# The kernel takes rows by 64 up to two chunks, by 256 from three; keys by 512, so the last one may be half a block.
PROBE_CHUNKS: Final = (2, 3, 4)

LayerBegins = Callable[[int], object]
"""(layer): asked before it is computed; may raise to give up."""
LayerEnds = Callable[[int, int, int], object]
"""(layer, start, end): KV of these positions is in the slot."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Rows behind the whole chunks, up to `end`; `attend` stores their keys and values too."""

    tokens: torch.Tensor
    positions: torch.Tensor
    end: int
    attend: Attend


class WidePass:
    """What passes share; `num_tokens` says how many whole chunks one would take."""

    def __init__(self, model: Decoder, like: torch.Tensor, attention: Attention) -> None:
        self._model = model
        self._attention = attention
        # Kernels of an accelerator have their own ways with a mask of none.
        self._is_usable = not like.is_cuda and recall(
            f"wide {model.config.num_heads} {model.config.num_kv_heads} {model.config.head_dim}",
            bool,
            lambda: is_causal_equal(model.config, like),
        )

    def num_tokens(self, prompt_tokens: int) -> int:
        """Positions from 0 on that `run` would compute; 0 where it may not."""
        return min(prompt_tokens // CHUNK_TOKENS, MAX_CHUNKS) * CHUNK_TOKENS * self._is_usable

    def run(
        self,
        slot: KvSlot,
        tokens: torch.Tensor,
        hooks: tuple[LayerBegins, LayerEnds],
        tail: Tail | None,
    ) -> torch.Tensor:
        """Compute `tokens` from position 0 on, whole chunks, and the tail behind them.

        Returns hidden states of the last LAST_ROWS positions, the last one first.
        """
        model, num_tokens, (begins, ends) = self._model, len(tokens), hooks
        end = num_tokens if tail is None else tail.end
        steps = range(0, num_tokens, model.wide_rows)
        spans = [slice(at, min(at + model.wide_rows, num_tokens)) for at in steps]
        pieces = [model.embed(tokens[span]) for span in spans]
        heads = (model.config.num_heads, model.config.head_dim)
        queries = pieces[0].new_empty(num_tokens, *heads)
        if tail is not None:
            last = model.embed(tail.tokens)
            last_rotation = model.rope.cos[tail.positions], model.rope.sin[tail.positions]
        final_layer = model.config.num_layers - 1
        for layer in range(model.config.num_layers):
            begins(layer)
            keys, values = slot.keys[layer][:num_tokens], slot.values[layer][:num_tokens]
            for span, hidden in zip(spans, pieces, strict=True):
                rotation = model.rope.cos[span], model.rope.sin[span]
                queries[span], keys[span], values[span] = model.heads(layer, hidden, rotation)
            if tail is not None:
                last = model.layer(layer, last, last_rotation, tail.attend, LAST_ROWS)
            ends(layer, 0, end)
            if layer < final_layer:
                attended = attend(queries, keys, values).flatten(1)
                for span, hidden in zip(spans, pieces, strict=True):
                    model.after_attention(layer, hidden, attended[span])
        if tail is not None:
            return last
        attended = self._attention.chunk(
            queries[-LAST_ROWS:].flip(0), slot, final_layer, num_tokens
        )
        return model.after_attention(final_layer, pieces[-1][-LAST_ROWS:].flip(0), attended)


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention of all rows [row, head, d] over keys and values [row, kv_head, d]."""
    q, keys, values = (x.transpose(0, 1)[None] for x in (q, keys, values))
    attended = functional.scaled_dot_product_attention(
        q, keys, values, is_causal=True, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


def is_causal_equal(config: DecoderConfig, like: torch.Tensor) -> bool:
    """Whether one causal call gives the bits of a masked call for each chunk."""
    return all(
        torch.equal(wide, torch.cat(list(chunks)))
        for num_chunks in PROBE_CHUNKS
        for wide, chunks in tries(config, num_chunks, like)
    )


def tries(
    config: DecoderConfig, num_chunks: int, like: torch.Tensor
) -> Iterator[tuple[torch.Tensor, Iterable[torch.Tensor]]]:
    """Of each probe the rows of one call, and those of the chunks' calls, in order of position."""
    num_keys = num_chunks * CHUNK_TOKENS
    heads, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
    masks = Masks(num_keys, like)
    ends = range(CHUNK_TOKENS, num_keys + 1, CHUNK_TOKENS)

    def chunk(end: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows = q[end - CHUNK_TOKENS : end].flip(0).transpose(0, 1)[None]
        attended = functional.scaled_dot_product_attention(
            rows,
            k[:end].transpose(0, 1)[None],
            v[:end].transpose(0, 1)[None],
            attn_mask=masks.rows(end, CHUNK_TOKENS, end),
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1).flip(0)

    for q, k, v in probes(config.head_dim, num_keys, like, heads, group):
        # Rows, keys and values as they lie in a pass and in a slot: [position, head, d].
        rows = q.repeat(1, 1, num_chunks, 1)
        lying = [x[0].transpose(0, 1).contiguous() for x in (rows, k, v)]
        yield attend(*lying), [chunk(end, *lying) for end in ends]
