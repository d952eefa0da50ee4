"""The table of model families, by the `architectures` entry of `config.json`."""

from collections.abc import Callable
from typing import Any, Final

from daemons.core.errors import ConfigError
from daemons.engine.models.config import DecoderConfig
from daemons.engine.models.llama import read_llama
from daemons.engine.models.qwen2 import read_qwen2
from daemons.engine.models.qwen3 import read_qwen3

FAMILIES: Final[dict[str, Callable[[dict[str, Any]], DecoderConfig]]] = {
    "LlamaForCausalLM": read_llama,
    "Qwen2ForCausalLM": read_qwen2,
    "Qwen3ForCausalLM": read_qwen3,
}


def read_decoder_config(raw: dict[str, Any]) -> DecoderConfig:
    """The decoder that a parsed `config.json` describes, or ConfigError."""
    architecture = (raw.get("architectures") or ["(none)"])[0]
    if architecture not in FAMILIES:
        raise ConfigError(
            f"config.json names the architecture {architecture}; supported are "
            f"{', '.join(FAMILIES)}: serve another checkpoint, or this one through an external engine"
        )
    return FAMILIES[architecture](raw)
