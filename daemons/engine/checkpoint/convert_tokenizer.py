"""The tokenizer inside a GGUF file, rebuilt as a Hugging Face `tokenizer.json`.

Only byte-level BPE. How text is cut before merging is not in the file but implied by
`tokenizer.ggml.pre`, so an unknown name is refused: a wrong cut gives silently worse answers.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, Protocol

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from daemons.core.errors import ConfigError


class Metadata(Protocol):
    """Key-value part of a GGUF file."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def require(self, key: str) -> Any: ...


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, as llama.cpp numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()])


def words(max_digits: int) -> pre_tokenizers.PreTokenizer:
    """The cut of cl100k and its heirs, which differ in how many digits stay together."""
    digits = r"\p{N}" if max_digits == 1 else rf"\p{{N}}{{1,{max_digits}}}"
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE_TOKENIZERS: Final[dict[str, Callable[[], pre_tokenizers.PreTokenizer]]] = {
    "gpt-2": byte_level,
    "smollm": single_digits,
    "qwen2": lambda: words(1),
    "llama-bpe": lambda: words(3),
}


def build_tokenizer(source: Metadata) -> Tokenizer:
    """A tokenizer whose ids equal those of the file's own runtime."""
    model = source.require("tokenizer.ggml.model")
    pre = source.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2" or pre not in PRE_TOKENIZERS:
        raise ConfigError(
            f"the tokenizer is {model!r} with pre-tokenizer {pre!r}; convertible are gpt2 with "
            f"{', '.join(PRE_TOKENIZERS)}: use the original Hugging Face directory instead"
        )
    tokens: list[str] = source.require("tokenizer.ggml.tokens")
    merges = [merge.split(" ", 1) for merge in source.require("tokenizer.ggml.merges")]
    bpe = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[(left, right) for left, right in merges],
        ignore_merges=pre == "llama-bpe",
    )
    tokenizer = Tokenizer(bpe)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    types = source.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    added = [
        AddedToken(token, special=kind != TokenType.USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    return tokenizer


def tokenizer_config(source: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    """The `tokenizer_config.json` beside it: special tokens by name, and the chat template."""
    tokens: list[str] = source.require("tokenizer.ggml.tokens")
    named = {
        "bos_token": source.get("tokenizer.ggml.bos_token_id"),
        "eos_token": source.get("tokenizer.ggml.eos_token_id"),
        "unk_token": source.get("tokenizer.ggml.unknown_token_id"),
        "pad_token": source.get("tokenizer.ggml.padding_token_id"),
    }
    written: dict[str, Any] = {
        name: tokens[token] for name, token in named.items() if token is not None
    }
    written |= {
        "add_bos_token": bool(source.get("tokenizer.ggml.add_bos_token", False)),
        "model_max_length": config["max_position_embeddings"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    template = source.get("tokenizer.chat_template")
    if template is not None:
        written["chat_template"] = template
    return written
