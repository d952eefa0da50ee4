"""A tiny random Llama, written without torch: its loading is a matter of the machine's own daemons."""

import json
from pathlib import Path

import numpy as np
from kit.models import EOS_TOKEN_ID, VOCAB_SIZE, write_tokenizer
from safetensors.numpy import save_file

_HIDDEN, _INNER, _LAYERS, _HEADS, _KV_HEADS = 64, 128, 3, 4, 2
_SHAPES = {
    "self_attn.q_proj": (_HIDDEN, _HIDDEN),
    "self_attn.k_proj": (_HIDDEN * _KV_HEADS // _HEADS, _HIDDEN),
    "self_attn.v_proj": (_HIDDEN * _KV_HEADS // _HEADS, _HIDDEN),
    "self_attn.o_proj": (_HIDDEN, _HIDDEN),
    "mlp.gate_proj": (_INNER, _HIDDEN),
    "mlp.up_proj": (_INNER, _HIDDEN),
    "mlp.down_proj": (_HIDDEN, _INNER),
}


def write_model(directory: Path) -> None:
    """As kit.models has it, with greedy answers that vary and depend on every token."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(3)
    tensors = {
        "model.embed_tokens.weight": random.normal(0, 0.04, (VOCAB_SIZE, _HIDDEN)),
        "model.norm.weight": np.ones(_HIDDEN),
    }
    for layer in range(_LAYERS):
        for name, shape in _SHAPES.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = random.normal(0, 0.2, shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = np.ones(_HIDDEN)
    save_file(
        {name: value.astype(np.float32) for name, value in tensors.items()},
        str(directory / "model.safetensors"),
        {"format": "pt"},
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": EOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
    }
    (directory / "config.json").write_text(json.dumps(config))
    write_tokenizer(directory)
    (directory / "model.safetensors").chmod(0o644)
