"""The forward pass shared by all families: rows of hidden states through every layer.

Knows the mathematics of a layer but nothing of sequences: where keys and values live and what a
row attends to is the caller's `Attend`. Rows are independent of each other except through it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from daemons.engine.checkpoint import Weights
from daemons.engine.geometry import CHUNK_TOKENS
from daemons.engine.linear import WIDE_ROWS, Linear
from daemons.engine.models.config import DecoderConfig
from daemons.engine.models.rope import RopeTable, rotate
from daemons.engine.models.shapes import check_shapes

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
# (layer, q [row, head, d], k and v [row, kv_head, d]) -> [row, head * d]; stores k and v.
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Logits of a prompt's last token and of a decode batch must agree: they share this row count.
LOGIT_ROWS = 4
MAX_LOGIT_ROWS = 32


@dataclass(frozen=True, slots=True)
class Layer:
    """The tensors of one layer; projections that read the same input are fused."""

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """A loaded model; immutable, and free of any per-sequence state."""

    def __init__(self, config: DecoderConfig, weights: Weights, num_positions: int) -> None:
        check_shapes(config, weights)
        self.config = config
        self.embedding = weights.take("model.embed_tokens.weight")
        self.layers = [load_layer(config, weights, index) for index in range(config.num_layers)]
        self.norm = weights.take("model.norm.weight")
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
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Hidden states [row, hidden] before the final norm, for int64 tokens and positions."""
        hidden = self.embed(tokens)
        rotation = self.rope.cos[positions], self.rope.sin[positions]
        for index in range(len(self.layers)):
            attended = attend(index, *self.heads(index, hidden, rotation))
            hidden = self.after_attention(index, hidden, attended)
        return hidden

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return functional.embedding(tokens, self.embedding)

    def heads(
        self, index: int, hidden: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> Heads:
        """The first half of a layer: q, k, v of rows whose rotation is (cosines, signed sines)."""
        config, layer = self.config, self.layers[index]
        rows, num_rotated = hidden.shape[0], config.num_heads + config.num_kv_heads
        heads = layer.qkv(self._norm(hidden, layer.input_norm)).view(rows, -1, config.head_dim)
        rotated = heads[:, :num_rotated]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
            rotated = torch.cat((self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)), dim=1)
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
        gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
        inner = functional.silu(gate, inplace=True).mul_(up)
        # A turned result is added five times slower than it is put right.
        return hidden.add_(layer.down(inner).contiguous())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 logits [row, vocab]."""
        return self.lm_head(self._norm(hidden, self.norm)).contiguous().float()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


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

    def norm(name: str) -> torch.Tensor:
        return weights.take(f"{prefix}{name}.weight")

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
