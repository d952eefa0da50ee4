import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from daemons.core.errors import ConfigError
from daemons.engine.checkpoint.checkpoint import open_weights
from daemons.engine.checkpoint.model_files import read_json, weight_files
from daemons.engine.models import read_decoder_config, read_geometry
from daemons.engine.runner import Runner

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture
def model_dir(tmp_path: Path, make_tiny: Any) -> Path:
    return Path(shutil.copytree(make_tiny("llama-tied").path, tmp_path / "model"))


def test_defaults_follow_the_format() -> None:
    config = read_decoder_config(LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.ties_embeddings) == (4, 16, False)
    assert (config.rope.theta, config.rope.kind, config.eos_token_ids) == (10000.0, "default", ())
    assert read_decoder_config(LLAMA | {"eos_token_id": [5, 6]}).eos_token_ids == (5, 6)


def test_both_spellings_of_rope_are_read() -> None:
    old = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = LLAMA | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}
    assert read_decoder_config(old) == read_decoder_config(new)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": None}, "supported are"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"num_local_experts": 8}, "experts"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding"),
        ({"use_sliding_window": True}, "sliding"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"hidden_size": None}, "hidden_size"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "head_dim"),
    ],
)
def test_what_would_change_answers_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_decoder_config(LLAMA | change)


@pytest.mark.parametrize(
    "key",
    [
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
    ],
)
@pytest.mark.parametrize("value", [0, -1, "3", 2.5, True, []])
def test_sizes_that_are_none_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        read_decoder_config(LLAMA | {key: value})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": 128, "head_dim": 16}, r"hidden_size.*embed_tokens.*200 x 128.*200 x 96"),
        ({"vocab_size": 300}, r"vocab_size.*embed_tokens.*300 x 96.*200 x 96"),
        ({"num_attention_heads": 2, "head_dim": 16}, "num_attention_heads.*q_proj"),
        ({"num_key_value_heads": 1}, "num_key_value_heads.*k_proj"),
        ({"head_dim": 32}, "head_dim.*q_proj"),
        ({"num_hidden_layers": 2}, "num_hidden_layers.*2 layers"),
    ],
)
def test_config_of_another_model_is_refused_by_key_and_tensor(
    model_dir: Path, make_runner: Callable[..., Runner], change: dict[str, Any], says: str
) -> None:
    path = model_dir / "config.json"
    path.write_text(json.dumps(read_json(path) | change))
    with pytest.raises(ConfigError, match=says):
        make_runner(model_dir)


def test_missing_tensor_is_named_not_its_neighbours(
    model_dir: Path, make_runner: Callable[..., Runner]
) -> None:
    path = model_dir / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.0.mlp.gate_proj.weight"]
    save_file(tensors, path)
    with pytest.raises(ConfigError, match=r"no tensor model\.layers\.0\.mlp\.gate_proj"):
        make_runner(model_dir)


def test_heads_must_share_evenly() -> None:
    with pytest.raises(ConfigError, match="cannot share"):
        read_decoder_config(LLAMA | {"num_attention_heads": 4, "num_key_value_heads": 3})


def test_wrong_directories_say_what_and_what_next(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model directory at .*nowhere.*model convert"):
        weight_files(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="lacks safetensors weights"):
        weight_files(tmp_path)
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        read_geometry(tmp_path, "float32")
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=r"config\.json"):
            read_json(tmp_path / "config.json")


def test_shards_are_read_through_their_index(
    model_dir: Path, make_runner: Callable[..., Runner]
) -> None:
    whole = make_runner(model_dir)
    tensors = load_file(model_dir / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    shards = model_dir.parent / "shards"
    shutil.copytree(model_dir, shards)
    (shards / "model.safetensors").unlink()
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, shards / file)
    index = {name: file for file, held in parts.items() for name in held}
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    runner = make_runner(shards)
    tokens = list(range(3, 80))
    assert torch.equal(
        runner.prefill(runner.arena.allocate(80), tokens),
        whole.prefill(whole.arena.allocate(80), tokens),
    )
    (shards / "b.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"lacks b\.safetensors"):
        weight_files(shards)


def test_torn_file_is_named(model_dir: Path) -> None:
    (model_dir / "model.safetensors").write_bytes(b"torn")
    with (
        pytest.raises(ConfigError, match="not readable"),
        open_weights(model_dir, torch.float32, "cpu"),
    ):
        pass


def test_missing_and_quantised_tensors_are_named(tmp_path: Path) -> None:
    save_file({"q": torch.zeros(4, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with open_weights(tmp_path, torch.float32, "cpu") as weights:
        with pytest.raises(ConfigError, match="no tensor lost"):
            weights.take("lost")
        with pytest.raises(ConfigError, match="quantised"):
            weights.take("q")
