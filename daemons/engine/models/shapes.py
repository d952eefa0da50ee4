"""Whether config.json and the tensors belong together, seen from the files' headers before anything is loaded."""

from collections.abc import Iterator

from daemons.core.errors import ConfigError
from daemons.engine.checkpoint.checkpoint import Weights
from daemons.engine.models.config import DecoderConfig

Shape = tuple[int, ...]


def check_shapes(config: DecoderConfig, weights: Weights) -> None:
    """Raises ConfigError naming the first tensor that is not as config.json says, and the keys that say it.

    A tensor that is missing is left to whoever takes it.
    """
    for name, expected, keys in _expected(config, weights):
        found = weights.shape(name)
        if found not in (None, expected):
            raise ConfigError(
                f"config.json ({keys}) makes {name} {_text(expected)}, in the checkpoint it is {_text(found)}: "
                "do both come from the same model?"
            )
    extra = f"model.layers.{config.num_layers}.input_layernorm.weight"
    if extra in weights:
        raise ConfigError(
            f"config.json (num_hidden_layers) says {config.num_layers} layers, but the checkpoint has {extra}: "
            "do both come from the same model?"
        )


def _expected(config: DecoderConfig, weights: Weights) -> Iterator[tuple[str, Shape, str]]:
    vocabulary = (config.vocab_size, config.hidden_size)
    yield "model.embed_tokens.weight", vocabulary, "vocab_size, hidden_size"
    if not config.ties_embeddings:
        yield "lm_head.weight", vocabulary, "vocab_size, hidden_size"
    yield "model.norm.weight", (config.hidden_size,), "hidden_size"
    for index in range(config.num_layers):
        yield from _layer(config, weights, f"model.layers.{index}.")


def _layer(
    config: DecoderConfig, weights: Weights, prefix: str
) -> Iterator[tuple[str, Shape, str]]:
    hidden = config.hidden_size
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{prefix}{norm}.weight", (hidden,), "hidden_size"
    query, cache = (heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads))
    rows = {"q_proj": query, "k_proj": cache, "v_proj": cache}
    keys = "num_attention_heads, num_key_value_heads, head_dim"
    for name, count in rows.items():
        yield f"{prefix}self_attn.{name}.weight", (count, hidden), f"{keys}, hidden_size"
        yield f"{prefix}self_attn.{name}.bias", (count,), keys
    yield f"{prefix}self_attn.o_proj.weight", (hidden, query), f"{keys}, hidden_size"
    if config.has_qk_norm:
        for name in ("q_norm", "k_norm"):
            yield f"{prefix}self_attn.{name}.weight", (config.head_dim,), "head_dim"
    gate = weights.shape(f"{prefix}mlp.gate_proj.weight")
    if gate is not None:
        inner = gate[:1]
        for name in ("gate_proj", "up_proj"):
            yield f"{prefix}mlp.{name}.weight", (*inner, hidden), "hidden_size"
        yield f"{prefix}mlp.down_proj.weight", (hidden, *inner), "hidden_size"


def _text(shape: Shape | None) -> str:
    return " x ".join(map(str, shape or ()))
