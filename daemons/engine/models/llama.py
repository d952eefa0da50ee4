"""Llama and what is built like it (SmolLM2): the plain decoder."""

from typing import Any

from daemons.engine.models.config import DecoderConfig, read_common


def read_llama(raw: dict[str, Any]) -> DecoderConfig:
    return read_common(raw, has_qk_norm=False)
