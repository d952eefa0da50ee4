"""Rotary position embedding (Su et al., 2021), with the linear and Llama 3 stretchings."""

import math

import torch

from daemons.engine.models.config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position of each rotated pair, float32 [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return stretch_llama3(rope, frequencies)
    return frequencies


def stretch_llama3(rope: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended linearly."""
    waves = 2 * math.pi / frequencies
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = (rope.original_positions / waves - rope.low_freq_factor) / span
    blended = (1 - keep) * frequencies / rope.factor + keep * frequencies
    long_wave = waves > rope.original_positions / rope.low_freq_factor
    short_wave = waves < rope.original_positions / rope.high_freq_factor
    stretched = torch.where(long_wave, frequencies / rope.factor, blended)
    return torch.where(short_wave, frequencies, stretched)


class RopeTable:
    """Cosines and signed sines of every position, [position, 1, head_dim]."""

    def __init__(
        self, rope: RopeConfig, head_dim: int, num_positions: int, like: torch.Tensor
    ) -> None:
        angles = torch.outer(
            torch.arange(num_positions).float(), inverse_frequencies(rope, head_dim)
        )
        cos, sin = angles.cos(), angles.sin()
        self.cos = torch.cat([cos, cos], dim=-1).to(like)[:, None]
        # The sign of rotate-half lives in the table: a rotation is then swap, multiply, add.
        self.sin = torch.cat([-sin, sin], dim=-1).to(like)[:, None]


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [row, head, head_dim] by its rows' angles."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
    return torch.addcmul(heads * cos, swapped, sin)
