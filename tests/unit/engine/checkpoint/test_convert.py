import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers

from daemons.core.errors import ConfigError
from daemons.engine.arena.kv_arena import KvArena
from daemons.engine.checkpoint.convert import convert, main
from daemons.engine.models import read_geometry
from daemons.engine.runner import Runner

TEMPLATE = "{{ messages[0].content }}"
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}


def vocabulary() -> tuple[list[str], list[str], list[int]]:
    """All bytes, two merges, two control tokens and one that a user defined."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, "he", "hel", "<|bos|>", "<|eos|>", "<tool>"]
    types = [1] * (len(letters) + 2) + [3, 3, 4]
    return tokens, ["h e", "he l"], types


def gguf_name(name: str) -> str:
    parts = name.split(".")
    if parts[1] == "layers":
        return f"blk.{parts[2]}.{GGUF_NAMES[parts[-2]]}.{parts[-1]}"
    return {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[
        parts[-2]
    ] + ".weight"


def ignore_line(line: str) -> None:
    del line


def interleave(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """What the format's own writer does to llama's q and k."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, arch: str, tiny: Any, **changes: Any) -> Path:
    """The tiny model as a GGUF file, in float32."""
    config = tiny.oracle.config
    tokens, merges, types = vocabulary()
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types(types)
    writer.add_bos_token_id(tokens.index("<|bos|>"))
    writer.add_eos_token_id(tokens.index("<|eos|>"))
    writer.add_chat_template(TEMPLATE)
    if "scaling" in changes:
        writer.add_rope_scaling_type(changes["scaling"])
    for name, tensor in tiny.oracle.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = tensor.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        projection = name.split(".")[-2]
        if arch == "llama" and projection in heads:
            value = interleave(value, heads[projection])
        writer.add_tensor(gguf_name(name), value)
    if "extra" in changes:
        writer.add_tensor(changes["extra"], np.zeros(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("arch", "name"), [("llama", "llama-tied"), ("qwen2", "qwen2"), ("qwen3", "qwen3")]
)
def test_converted_model_answers_as_the_original(
    tmp_path: Path, make_tiny: Any, make_runner: Any, arch: str, name: str
) -> None:
    tiny = make_tiny(name)
    source = write_gguf(tmp_path / "model.gguf", arch, tiny)
    convert(source, tmp_path / "out", "float32", ignore_line)
    original = make_runner(tiny.path)
    converted = Runner(tmp_path / "out", KvArena(read_geometry(tmp_path / "out", "float32"), 1024))
    assert converted.config.rope == original.config.rope
    tokens = list(range(3, 150))
    slot = original.arena.allocate(150)
    expected = original.prefill(slot, tokens)
    original.arena.free(slot)
    assert torch.equal(converted.prefill(converted.arena.allocate(150), tokens), expected)


def test_tokenizer_template_and_special_tokens_come_along(tmp_path: Path, make_tiny: Any) -> None:
    out = tmp_path / "out"
    convert(
        write_gguf(tmp_path / "model.gguf", "llama", make_tiny("llama-tied")),
        out,
        "bfloat16",
        ignore_line,
    )
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    encoded = tokenizer.encode("<|bos|>hello 2026<tool>")
    assert encoded.tokens == ["<|bos|>", "hel", "l", "o", "Ġ", "2", "0", "2", "6", "<tool>"]
    text = "tabs\t, ünïcode, 你好 and 12345\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode(encoded.ids) == "hello 2026<tool>"
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert config["chat_template"] == TEMPLATE
    assert (config["bos_token"], config["eos_token"]) == ("<|bos|>", "<|eos|>")
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 258, "eos_token_id": 259}
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pre": "mystery"}, "mystery"),
        ({"extra": "blk.0.ffn_gate_exps.weight"}, "ffn_gate_exps"),
        ({"scaling": gguf.RopeScalingType.YARN}, "scaled rope"),
    ],
)
def test_what_cannot_be_converted_leaves_nothing_behind(
    tmp_path: Path, make_tiny: Any, changes: dict[str, Any], says: str
) -> None:
    source = write_gguf(tmp_path / "model.gguf", "llama", make_tiny("llama-tied"), **changes)
    with pytest.raises(ConfigError, match=says):
        convert(source, tmp_path / "out", "float32", ignore_line)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_other_architectures_are_named(tmp_path: Path, make_tiny: Any) -> None:
    source = write_gguf(tmp_path / "model.gguf", "gemma", make_tiny("qwen2"))
    with pytest.raises(ConfigError, match="gemma"):
        convert(source, tmp_path / "out", "float32", ignore_line)


def test_command_reports_plain_lines(
    tmp_path: Path, make_tiny: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write_gguf(tmp_path / "model.gguf", "llama", make_tiny("llama-tied"))
    out = tmp_path / "out"
    assert main([str(source), str(out)]) == 0
    assert capfd.readouterr().err.splitlines()[-1] == f"wrote {out}"
    assert main([str(source), str(out)]) == 78
    assert "exists: remove it" in capfd.readouterr().err
    (tmp_path / "text").write_text("no gguf")
    assert main([str(tmp_path / "text"), str(tmp_path / "other")]) == 78
    assert main([str(tmp_path / "nowhere"), str(tmp_path / "other")]) == 78
    assert "check the path" in capfd.readouterr().err
