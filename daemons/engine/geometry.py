"""Shape and byte arithmetic of a model's KV; free of torch, so that anyone may size memory."""

from dataclasses import dataclass
from typing import Final, Literal

KvDtype = Literal["bfloat16", "float32"]

# Attention sees keys padded to this grid and prefill is cut on it, whatever was reused; results
# at a position are then bit-equal. Part of the numerics id.
CHUNK_TOKENS: Final = 256
ELEMENT_BYTES: Final[dict[KvDtype, int]] = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """What one token's KV looks like; the layout is [layer][k|v][token][kv_head][head_dim]."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: KvDtype
    block_tokens: int = 64

    def __post_init__(self) -> None:
        if self.block_tokens <= 0 or CHUNK_TOKENS % self.block_tokens:
            raise ValueError(
                f"block_tokens={self.block_tokens} does not divide the chunk of {CHUNK_TOKENS}"
            )

    @property
    def bytes_per_token_layer_half(self) -> int:
        """Keys, or values, of one token in one layer."""
        return self.num_kv_heads * self.head_dim * ELEMENT_BYTES[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        return self.layer_bytes(1) * self.num_layers

    @property
    def block_bytes(self) -> int:
        return self.bytes_per_token * self.block_tokens

    def layer_bytes(self, num_tokens: int) -> int:
        """Keys and values of `num_tokens` tokens in one layer."""
        return 2 * num_tokens * self.bytes_per_token_layer_half
