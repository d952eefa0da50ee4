"""Qwen3: queries and keys are normalised per head before the rotation."""

from typing import Any

from daemons.core.errors import ConfigError
from daemons.engine.models.config import DecoderConfig, read_common


def read_qwen3(raw: dict[str, Any]) -> DecoderConfig:
    if raw.get("head_dim") is None:
        raise ConfigError("config.json lacks head_dim, which Qwen3 does not derive from its width")
    return read_common(raw, has_qk_norm=True)
