"""A model directory's tokenizer: text to token ids and back, its special tokens, context and chat template.

Loaded once and then never changed, so any thread may use it. Long texts are encoded without holding the GIL.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec
import tokenizers

from daemons.core.errors import ConfigError
from daemons.text.chat_template import ChatTemplate, load_chat_template
from daemons.text.piecewise import PieceCache, can_cut

UNBOUNDED_CONTEXT: Final = 10**9
"""Hugging Face writes int(1e30) into model_max_length when it does not know."""

type_error = (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError)

Json = dict[str, object]


@dataclass(frozen=True)
class Tokenizer:
    """What `load_tokenizer` read; ids are those of `tokenizer.json`."""

    directory: Path
    backend: tokenizers.Tokenizer
    special_tokens: dict[str, str]
    """By role: bos_token, eos_token, unk_token, pad_token, as the chat template may name them."""
    eos_token_ids: frozenset[int]
    max_context_tokens: int | None
    chat_template: ChatTemplate | None

    def encode(self, text: str, *, add_special_tokens: bool = False, scope: str = "") -> list[int]:
        """Token ids. A rendered chat template already holds its special tokens; a bare prompt asks for them.

        What was encoded before makes it faster only within one `scope`.
        """
        if add_special_tokens and self._adds_special_tokens:
            [encoding] = self.backend.encode_batch([text], add_special_tokens=True)
            ids: list[int] = encoding.ids
            return ids
        if self._pieces is not None:
            return self._pieces.encode(text, scope)
        return self._encode_batch([text])[0]

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The whole text at once; the streaming detokenizer gives the same one in pieces."""
        return str(self.backend.decode(list(tokens), skip_special_tokens=skip_special_tokens))

    def token_text(self, token: int) -> str | None:
        """The vocabulary's own spelling of a token, None for an id that it does not have."""
        return self.backend.id_to_token(token)

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        # The batch call releases the GIL, the single one does not: a long prompt must not stop other streams.
        return [item.ids for item in self.backend.encode_batch(texts, add_special_tokens=False)]

    @cached_property
    def _pieces(self) -> PieceCache | None:
        return PieceCache(self._encode_batch) if can_cut(self.backend) else None

    @cached_property
    def _adds_special_tokens(self) -> bool:
        return bool(self.backend.encode("", add_special_tokens=True).ids)

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that steer the model and are never shown."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token for token, content in added.items() if content.special)

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids with the added tokens; every id of a prompt is below it."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def max_token_chars(self) -> int:
        """Longest spelling in the vocabulary: a text of n characters has at least n / this many tokens."""
        return max(
            (len(text) for text in self.backend.get_vocab(with_added_tokens=True)), default=1
        )

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether tokens are bytes in the GPT-2 alphabet, so that decoding is concatenation."""
        decoder = msgspec.json.decode(self.backend.to_str(), type=_DecoderOf).decoder
        if decoder is None:
            return False
        steps = decoder.decoders if decoder.type == "Sequence" else [decoder]
        return [step.type for step in steps] == ["ByteLevel"]


class _Decoder(msgspec.Struct):
    type: str
    decoders: list["_Decoder"] = msgspec.field(default_factory=list)


class _DecoderOf(msgspec.Struct):
    decoder: _Decoder | None = None


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer in a Hugging Face directory; a ConfigError says which file is missing or broken."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; name a model directory that holds tokenizer.json"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower for a bad file
        raise ConfigError(f"{path} is not a tokenizer: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    settings = _read_json(directory / "tokenizer_config.json")
    model = _read_json(directory / "config.json")
    generation = _read_json(directory / "generation_config.json")
    special_tokens = _special_tokens(settings)
    return Tokenizer(
        directory=directory,
        backend=backend,
        special_tokens=special_tokens,
        eos_token_ids=_eos_ids(backend, special_tokens, (generation, model)),
        max_context_tokens=_max_context(model, settings),
        chat_template=load_chat_template(directory, settings, special_tokens),
    )


def _read_json(path: Path) -> Json:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=Json)
    except type_error as error:
        raise ConfigError(f"{path} is not a JSON object: {error}") from error


def _special_tokens(settings: Json) -> dict[str, str]:
    """Roles as strings; the file has either a string or an object with `content`."""
    found = {}
    for role, value in settings.items():
        content = value.get("content") if isinstance(value, dict) else value
        if role.endswith("_token") and isinstance(content, str):
            found[role] = content
    return found


def _eos_ids(
    backend: tokenizers.Tokenizer, special_tokens: dict[str, str], configs: Iterable[Json]
) -> frozenset[int]:
    ids: set[object] = set()
    if "eos_token" in special_tokens:
        ids.add(backend.token_to_id(special_tokens["eos_token"]))
    for config in configs:
        value = config.get("eos_token_id")
        ids.update(value if isinstance(value, list) else [value])
    return frozenset(token for token in ids if isinstance(token, int))


def _max_context(model: Json, settings: Json) -> int | None:
    for config, key in ((model, "max_position_embeddings"), (settings, "model_max_length")):
        value = config.get(key)
        if isinstance(value, int) and 0 < value < UNBOUNDED_CONTEXT:
            return value
    return None
