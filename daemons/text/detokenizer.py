"""Tokens to text while they arrive: the pieces join to exactly what decoding all tokens at once gives.

Never half a character; O(1) amortised a token. Two ways: byte-level vocabularies (GPT-2 alphabet: Llama 3, Qwen,
SmolLM) decode by concatenating bytes; for all others a short window of tokens is decoded twice and compared.
"""

import codecs
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final, Protocol

from daemons.text.tokenizer import Tokenizer

MAX_PENDING_TOKENS: Final = 16
"""A character has at most four bytes; a longer run without one is broken text and is shown as it is."""

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(Protocol):
    """One per answer."""

    def push(self, tokens: Iterable[int]) -> str:
        """The characters that are complete with these tokens."""
        ...

    def finish(self) -> str:
        """What was still held; call once, after the last push."""
        ...


def make_detokenizer(tokenizer: Tokenizer, *, hidden: Collection[int] = ()) -> Detokenizer:
    """Special tokens and those in `hidden` (a model's end tokens) leave no text."""
    skip = tokenizer.special_token_ids | frozenset(hidden)
    if tokenizer.is_byte_level:
        return ByteDetokenizer(tokenizer, skip)
    return WindowDetokenizer(tokenizer, skip)


class ByteDetokenizer:
    """For byte-level vocabularies: each token is bytes, the text is their UTF-8 with replacements."""

    def __init__(self, tokenizer: Tokenizer, skip: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skip = skip
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, tokens: Iterable[int]) -> str:
        spelled = (self._tokenizer.token_text(token) for token in tokens if token not in self._skip)
        return self._utf8.decode(b"".join(token_bytes(text) for text in spelled if text))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For any vocabulary: text of the window with the new tokens, minus the text of it without them.

    The window starts with tokens that were already shown, because decoders treat the first token of a text
    apart (they drop its leading space).
    """

    def __init__(self, tokenizer: Tokenizer, skip: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skip = skip
        self._window: list[int] = []
        self._num_shown = 0
        self._shown = ""

    def push(self, tokens: Iterable[int]) -> str:
        return "".join(self._push_one(token) for token in tokens if token not in self._skip)

    def finish(self) -> str:
        return self._decode()[len(self._shown) :]

    def _push_one(self, token: int) -> str:
        self._window.append(token)
        text = self._decode()
        is_broken = len(self._window) - self._num_shown > MAX_PENDING_TOKENS
        if text.endswith(REPLACEMENT) and not is_broken:
            return ""
        new = text[len(self._shown) :]
        del self._window[: self._num_shown]
        self._num_shown = len(self._window)
        self._shown = self._decode()
        return new

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 as itself, the other 68 from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF: Final = _byte_alphabet()


@lru_cache(maxsize=65536)
def token_bytes(spelling: str) -> bytes:
    """A token's bytes; an added token with characters outside the alphabet is its own UTF-8."""
    try:
        return bytes([_BYTE_OF[character] for character in spelling])
    except KeyError:
        return spelling.encode()
