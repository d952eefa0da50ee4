"""The shape of a decoder as its `config.json` states it; what we cannot run exactly is refused."""

from dataclasses import dataclass
from typing import Any

from daemons.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base, and how it is stretched beyond the training length."""

    theta: float
    kind: str = "default"  # default | linear | llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Everything the forward pass needs to know beside the tensors."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    rope: RopeConfig
    has_qk_norm: bool
    ties_embeddings: bool
    eos_token_ids: tuple[int, ...]


def required(raw: dict[str, Any], key: str) -> Any:
    if raw.get(key) is None:
        raise ConfigError(f"config.json lacks {key}: it does not describe a decoder we can run")
    return raw[key]


def count(raw: dict[str, Any], key: str, default: int | None = None) -> int:
    """A size: a whole number from 1 on."""
    value = required(raw, key) if default is None else raw.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"config.json: {key} is {value!r}, not a whole number from 1 on: is the file damaged?"
        )
    return value


def refuse_unsupported(raw: dict[str, Any]) -> None:
    """Raise ConfigError for every feature that would silently change answers if ignored."""
    layer_types = set(raw.get("layer_types") or ["full_attention"])
    uses_window = raw.get("use_sliding_window") or layer_types != {"full_attention"}
    refused = {
        "quantization_config (a quantised checkpoint)": raw.get("quantization_config"),
        "num_experts (mixture of experts)": raw.get("num_experts") or raw.get("num_local_experts"),
        "sliding window attention": uses_window,
        "partial_rotary_factor": raw.get("partial_rotary_factor") not in (None, 1, 1.0),
        f"hidden_act {raw.get('hidden_act')!r} (only silu)": raw.get("hidden_act") != "silu",
    }
    found = [name for name, value in refused.items() if value]
    if found:
        raise ConfigError(
            f"config.json asks for {'; '.join(found)}, which this engine does not implement: "
            "serve another checkpoint, or this one through an external engine"
        )


def read_rope(raw: dict[str, Any]) -> RopeConfig:
    """Both spellings: `rope_theta` + `rope_scaling`, and the newer `rope_parameters`."""
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise ConfigError(
            f"config.json asks for rope type {kind!r}; implemented are default, linear, llama3: "
            "serve another checkpoint, or this one through an external engine"
        )
    if kind == "default":
        return RopeConfig(theta)
    factor = float(required(parameters, "factor"))
    if kind == "linear":
        return RopeConfig(theta, kind, factor)
    return RopeConfig(
        theta,
        kind,
        factor,
        float(required(parameters, "low_freq_factor")),
        float(required(parameters, "high_freq_factor")),
        int(required(parameters, "original_max_position_embeddings")),
    )


def read_common(raw: dict[str, Any], *, has_qk_norm: bool) -> DecoderConfig:
    """What all families spell the same way."""
    refuse_unsupported(raw)
    hidden_size, num_heads = count(raw, "hidden_size"), count(raw, "num_attention_heads")
    num_kv_heads = count(raw, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"config.json: {num_heads} attention heads cannot share {num_kv_heads} key/value heads"
        )
    eos = raw.get("eos_token_id")
    return DecoderConfig(
        num_layers=count(raw, "num_hidden_layers"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=count(raw, "head_dim", max(1, hidden_size // num_heads)),
        vocab_size=count(raw, "vocab_size"),
        max_positions=count(raw, "max_position_embeddings"),
        rms_norm_eps=float(required(raw, "rms_norm_eps")),
        rope=read_rope(raw),
        has_qk_norm=has_qk_norm,
        ties_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
    )
