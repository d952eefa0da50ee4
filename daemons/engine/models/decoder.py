"""The forward pass shared by all families: rows of hidden states through every layer.

Knows the mathematics of a layer but nothing of sequences: where keys and values live and what a
row attends to is the caller's `Attend`. Rows are independent of each other except through it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from daemons.engine.checkpoint.checkpoint import Weights
from daemons.engine.geometry import CHUNK_TOKENS
from daemons.engine.models.config import DecoderConfig
from daemons.engine.models.norm import RmsNorm
from daemons.engine.models.rope import RopeTable, rotate
from daemons.engine.models.shapes import check_shapes
from daemons.engine.prompt.linear import ROW_BUCKETS, WIDE_ROWS, Linear

Rotation = tuple[torch.Tensor, torch.Tensor]
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
# (layer, q [row, head, d], k and v [row, kv_head, d]) -> [row, head * d]; stores k and v.
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Logits of a prompt's last token and of a decode batch must agree: they share this row count.
LOGIT_ROWS = 4
MAX_LOGIT_ROWS = 32
# Of a prompt, the last layer ends for so many rows only: nobody asks for what the others become.
LAST_ROWS = ROW_BUCKETS[0]


@dataclass(frozen=True, slots=True)
class Layer:
    """The tensors of one layer; projections that read the same input are fused."""

    input_norm: RmsNorm
    qkv: Linear
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None
    output: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    down: Linear


class Decoder:
    """A loaded model; immutable, and free of any per-sequence state."""

    def __init__(self, config: DecoderConfig, weights: Weights, num_positions: int) -> None:
        check_shapes(config, weights)
        self.config = config
        self.embedding = weights.take("model.embed_tokens.weight")
        self.layers = [load_layer(config, weights, index) for index in range(config.num_layers)]
        self.norm = RmsNorm(weights.take("model.norm.weight"), config.rms_norm_eps)
        head = self.embedding if config.ties_embeddings else weights.take("lm_head.weight")
        self.lm_head = Linear(
            head,
            reference_rows=LOGIT_ROWS,
            max_rows=MAX_LOGIT_ROWS,
            is_kept=config.ties_embeddings,
        )
        products = [
            product
            for layer in self.layers
            for product in (layer.qkv, layer.output, layer.gate_up, layer.down)
        ]
        # Rows of one call in a wide pass.
        self.wide_rows = WIDE_ROWS if all(each.takes_wide for each in products) else CHUNK_TOKENS
        self.rope = RopeTable(config.rope, config.head_dim, num_positions, self.embedding)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        num_wanted: int | None = None,
    ) -> torch.Tensor:
        """Hidden states [row, hidden] before the final norm, for int64 tokens and positions."""
        hidden = self.embed(tokens)
        rotation = self.rope.cos[positions], self.rope.sin[positions]
        for index in range(len(self.layers)):
            hidden = self.layer(index, hidden, rotation, attend, num_wanted)
        return hidden

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return functional.embedding(tokens, self.embedding)

    def layer(
        self,
        index: int,
        hidden: torch.Tensor,
        rotation: Rotation,
        attend: Attend,
        num_wanted: int | None = None,
    ) -> torch.Tensor:
        """Hidden states behind a layer; behind the last one those of the first `num_wanted` rows, if given.

        Of the other rows it then makes keys and values, and nothing else.
        """
        q, k, v = self.heads(index, hidden, rotation)
        if index == len(self.layers) - 1:
            q, hidden = q[:num_wanted], hidden[:num_wanted]
        return self.after_attention(index, hidden, attend(index, q, k, v))

    def heads(self, index: int, hidden: torch.Tensor, rotation: Rotation) -> Heads:
        """The first half of a layer: q, k, v of rows whose rotation is (cosines, signed sines)."""
        config, layer = self.config, self.layers[index]
        rows, num_rotated = hidden.shape[0], config.num_heads + config.num_kv_heads
        heads = layer.qkv(layer.input_norm(hidden)).view(rows, -1, config.head_dim)
        rotated = heads[:, :num_rotated]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
            rotated = torch.cat((layer.q_norm(q), layer.k_norm(k)), dim=1)
        rotated = rotate(rotated, *rotation)
        return (
            rotated[:, : config.num_heads],
            rotated[:, config.num_heads :],
            heads[:, num_rotated:],
        )

    def after_attention(
        self, index: int, hidden: torch.Tensor, attended: torch.Tensor
    ) -> torch.Tensor:
        """The second half: hidden states behind the layer, in place of those before it."""
        layer = self.layers[index]
        hidden.add_(layer.output(attended))
        gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, dim=-1)
        inner = functional.silu(gate, inplace=True).mul_(up)
        # A turned result is added five times slower than it is put right.
        return hidden.add_(layer.down(inner).contiguous())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 logits [row, vocab]."""
        return self.lm_head(self.norm(hidden)).contiguous().float()


def load_layer(config: DecoderConfig, weights: Weights, index: int) -> Layer:
    """Take one layer's tensors out of the checkpoint."""
    prefix = f"model.layers.{index}."

    def fused(*names: str, may_turn: bool = False) -> Linear:
        stems = [prefix + name for name in names]
        return Linear(
            weights.take_fused([stem + ".weight" for stem in stems]),
            weights.take_optional([stem + ".bias" for stem in stems]),
            may_turn=may_turn,
        )

    def norm(name: str) -> RmsNorm:
        return RmsNorm(weights.take(f"{prefix}{name}.weight"), config.rms_norm_eps)

    return Layer(
        input_norm=norm("input_layernorm"),
        qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        q_norm=norm("self_attn.q_norm") if config.has_qk_norm else None,
        k_norm=norm("self_attn.k_norm") if config.has_qk_norm else None,
        output=fused("self_attn.o_proj"),
        mlp_norm=norm("post_attention_layernorm"),
        # A turned result suits what follows here, and is put right once, after `down`.
        gate_up=fused("mlp.gate_proj", "mlp.up_proj", may_turn=True),
        down=fused("mlp.down_proj", may_turn=True),
    )
