"""One-time conversion of a GGUF file to a Hugging Face directory: `python -m daemons.engine.checkpoint.convert`.

The directory appears under its final name only when it is complete. Weights are dequantised, so the
result serves at full width; the tokenizer is rebuilt so that its ids equal those of llama.cpp.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from daemons.core.errors import ConfigError, McError
from daemons.engine.checkpoint.convert_tokenizer import build_tokenizer, tokenizer_config

DtypeName = Literal["bfloat16", "float32"]
Progress = Callable[[str], None]

ARCHITECTURES: Final = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
GLOBAL_TENSORS: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSORS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An opened GGUF file: its metadata decoded, its tensors still on disk."""

    path: Path
    reader: gguf.GGUFReader

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        if not path.is_file():
            raise ConfigError(f"no GGUF file at {path}: check the path")
        try:
            return cls(path, gguf.GGUFReader(path))
        except ValueError as error:
            raise ConfigError(f"{path} is not a readable GGUF file: {error}") from error

    def get(self, key: str, default: Any = None) -> Any:
        field = self.reader.get_field(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ConfigError(f"{self.path} lacks {key}: it is not a language model we can convert")
        return value


def hf_config(source: GgufFile, dtype: str) -> dict[str, Any]:
    """The `config.json` that describes the file's model."""
    arch = source.require("general.architecture")
    if arch not in ARCHITECTURES:
        raise ConfigError(
            f"{source.path} holds a {arch!r} model; convertible are {', '.join(ARCHITECTURES)}"
        )
    tensors = {tensor.name: tensor for tensor in source.reader.tensors}
    if source.get(f"{arch}.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in tensors:
        raise ConfigError(
            f"{source.path} uses scaled rope, which GGUF keeps only as factors: "
            "use the original Hugging Face directory instead"
        )
    if "token_embd.weight" not in tensors:
        raise ConfigError(
            f"{source.path} has no token_embd.weight: is it one part of a split file?"
        )
    heads = source.require(f"{arch}.attention.head_count")
    hidden = source.require(f"{arch}.embedding_length")
    head_dim = source.get(f"{arch}.attention.key_length", hidden // heads)
    architecture, model_type = ARCHITECTURES[arch]
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": source.require(f"{arch}.feed_forward_length"),
        "num_hidden_layers": source.require(f"{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.get(f"{arch}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": source.require(f"{arch}.context_length"),
        "rms_norm_eps": shortest(source.require(f"{arch}.attention.layer_norm_rms_epsilon")),
        "rope_theta": shortest(source.get(f"{arch}.rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors and arch != "qwen2",
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "bos_token_id": source.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": source.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": dtype,
    }


def shortest(value: float) -> float:
    """The number that was meant: GGUF keeps 1e-05 as float32, 9.999999747e-06."""
    return float(str(np.float32(value)))


def hf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, or None when it names none."""
    if name in GLOBAL_TENSORS:
        return GLOBAL_TENSORS[name]
    block, _, rest = name.removeprefix("blk.").partition(".")
    stem, _, kind = rest.rpartition(".")
    if not block.isdigit() or stem not in LAYER_TENSORS:
        return None
    return f"model.layers.{block}.{LAYER_TENSORS[stem]}.{kind}"


def unpermute(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Undo GGUF's interleaving of a llama q or k projection: rotary pairs become halves again."""
    rows = weight.shape[0]
    paired = weight.reshape(num_heads, rows // num_heads // 2, 2, *weight.shape[1:])
    return paired.swapaxes(1, 2).reshape(weight.shape)


def convert_tensors(
    source: GgufFile, config: dict[str, Any], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Dequantised tensors under their Hugging Face names, one at a time."""
    is_llama = config["model_type"] == "llama"
    num_heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }
    for tensor in source.reader.tensors:
        name = hf_name(tensor.name)
        if name is None:
            raise ConfigError(
                f"{source.path} has the unknown tensor {tensor.name}: its model differs from "
                f"plain {config['model_type']}, use the original Hugging Face directory"
            )
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        projection = name.split(".")[-2]
        if is_llama and projection in num_heads:
            values = unpermute(values, num_heads[projection])
        yield name, torch.from_numpy(np.array(values, dtype=np.float32)).to(dtype)


def convert(path: Path, out_dir: Path, dtype: DtypeName, progress: Progress) -> None:
    """Write `out_dir` from the GGUF file; raises ConfigError and leaves nothing behind on failure."""
    if out_dir.exists():
        raise ConfigError(f"{out_dir} exists: remove it or choose another directory")
    progress(f"reading {path}")
    source = GgufFile.open(path)
    config = hf_config(source, dtype)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    try:
        progress(f"converting {len(source.reader.tensors)} tensors to {dtype}")
        tensors = dict(convert_tensors(source, config, getattr(torch, dtype)))
        save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
        progress("building the tokenizer")
        build_tokenizer(source).save(str(partial / "tokenizer.json"))
        write_json(partial / "config.json", config)
        write_json(partial / "tokenizer_config.json", tokenizer_config(source, config))
        special = ("bos_token_id", "eos_token_id")
        write_json(partial / "generation_config.json", {key: config[key] for key in special})
        partial.chmod(0o755)  # as made, only its owner could read the two
        (partial / "model.safetensors").chmod(0o644)
        partial.rename(out_dir)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    progress(f"wrote {out_dir}")


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m daemons.engine.checkpoint.convert`."""
    parser = argparse.ArgumentParser(prog="convert", description=__doc__)
    parser.add_argument("gguf_file", type=Path)
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    arguments = parser.parse_args(argv)
    try:
        convert(arguments.gguf_file, arguments.out_dir, arguments.dtype, print_line)
    except McError as error:
        print_line(f"error: {error}")
        return 78
    return 0


def print_line(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
