"""Tiny random checkpoints of each family, made by transformers (the oracle), with a real byte-level tokenizer."""

import json
from pathlib import Path
from typing import Any, Literal

Family = Literal["llama", "qwen2", "qwen3"]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")
VOCAB_SIZE = 320
EOS_TOKEN_ID = 256

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_model(directory: Path, family: Family = "llama", *, seed: int = 0) -> Path:
    """A checkpoint directory that our engine and transformers both load. About 1 MB, 2 GQA groups, 2048 positions."""
    import torch
    from transformers import AutoModelForCausalLM

    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(_config(family))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Larger than the library's 0.02: greedy answers then vary and depend on every token.
            if parameter.ndim > 1:
                parameter.mul_(10.0 if "layers" in name else 2.0)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def _config(family: Family) -> Any:
    import transformers

    classes = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }
    extra: dict[str, Any] = {"head_dim": 16} if family == "qwen3" else {}
    return classes[family](
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=EOS_TOKEN_ID,
        eos_token_id=EOS_TOKEN_ID,
        pad_token_id=EOS_TOKEN_ID,
        tie_word_embeddings=family == "llama",
        use_cache=True,
        **extra,
    )


def write_tokenizer(directory: Path) -> None:
    """Byte by byte, with a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<|im_end|>", "<|im_start|>")]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "bos_token": "<|im_start|>",
        "chat_template": _CHAT_TEMPLATE,
        "model_max_length": 2048,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
