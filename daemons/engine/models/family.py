"""The table of model families, by the `architectures` entry of `config.json`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from daemons.core.errors import ConfigError
from daemons.engine.checkpoint.model_files import read_json
from daemons.engine.geometry import KvDtype, KvGeometry
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


def read_geometry(model_dir: Path, dtype: KvDtype, block_tokens: int = 64) -> KvGeometry:
    """The KV geometry of a model directory, to size an arena before loading the model."""
    config = read_decoder_config(read_json(model_dir / "config.json"))
    return KvGeometry(config.num_layers, config.num_kv_heads, config.head_dim, dtype, block_tokens)
