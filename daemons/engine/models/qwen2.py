"""Qwen2 and Qwen2.5: a bias on the query, key and value projections."""

from typing import Any

from daemons.engine.models.config import DecoderConfig, read_common


def read_qwen2(raw: dict[str, Any]) -> DecoderConfig:
    # The biases need no flag: the decoder adds those that the checkpoint holds.
    return read_common(raw, has_qk_norm=False)
