"""Pieces join to the text that decoding everything at once gives."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from daemons.text.detokenizer import (
    MAX_PENDING_TOKENS,
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    make_detokenizer,
    token_bytes,
)
from daemons.text.tokenizer import Tokenizer

CORPUS = [
    "the quick brown fox",
    "größe über naïve café",
    "日本語のテキスト",
    "🙂🙃 emoji 👩‍👩‍👧",
    "  spaces\n\ttabs",
]
SPECIAL = ["<s>", "</s>"]


def wrap(backend: Backend) -> Tokenizer:
    return Tokenizer(Path(), backend, {"eos_token": "</s>"}, frozenset({1}), 512, None)


def byte_level() -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return wrap(backend)


def byte_fallback() -> Tokenizer:
    """As sentencepiece models: `▁` for spaces, unknown characters as byte tokens."""
    pieces = [
        *SPECIAL,
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdefgh",
        "▁ab",
        "cd",
    ]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁a", "b"), ("c", "d")]
    vocab.setdefault("▁a", len(vocab))
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(SPECIAL)
    return wrap(backend)


BYTES, FALLBACK = byte_level(), byte_fallback()
TOKENIZERS = {"byte-level": BYTES, "byte-fallback": FALLBACK}


def shown(detokenizer: Detokenizer, tokens: Iterable[int]) -> list[str]:
    pieces = [detokenizer.push([token]) for token in tokens]
    return [*pieces, detokenizer.finish()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(max_size=60))
@settings(deadline=None)
def test_any_text_comes_out_as_one_shot_decoding_gives_it(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(text)
    pieces = shown(make_detokenizer(tokenizer), tokens)
    assert "".join(pieces) == tokenizer.decode(tokens)


@given(text=st.text(max_size=60))
@settings(deadline=None)
def test_byte_level_round_trips_to_the_very_text(text: str) -> None:
    tokens = BYTES.encode(text)
    if not any(token in BYTES.special_token_ids for token in tokens):
        assert "".join(shown(make_detokenizer(BYTES), tokens)) == text


@given(tokens=st.lists(st.integers(0, BYTES.vocab_size - 1), max_size=80))
@settings(deadline=None)
def test_any_byte_level_tokens_even_broken_ones_equal_one_shot(tokens: list[int]) -> None:
    assert "".join(shown(make_detokenizer(BYTES), tokens)) == BYTES.decode(tokens)


@given(text=st.text(max_size=40), cuts=st.lists(st.integers(1, 7), min_size=1))
@settings(deadline=None)
def test_how_tokens_are_grouped_does_not_matter(text: str, cuts: list[int]) -> None:
    tokens, detokenizer, pieces = BYTES.encode(text), make_detokenizer(BYTES), []
    position = 0
    for cut in cuts * (len(tokens) + 1):
        pieces.append(detokenizer.push(tokens[position : position + cut]))
        position += cut
    assert "".join([*pieces, detokenizer.finish()]) == BYTES.decode(tokens)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_never_half_a_character(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for piece in shown(make_detokenizer(tokenizer), tokenizer.encode("é🙂日👩‍👩‍👧z")):
        assert "\N{REPLACEMENT CHARACTER}" not in piece


def test_kinds_are_told_apart() -> None:
    assert isinstance(make_detokenizer(BYTES), ByteDetokenizer)
    assert isinstance(make_detokenizer(FALLBACK), WindowDetokenizer)


def test_leading_space_of_later_words_stays() -> None:
    assert "".join(shown(make_detokenizer(FALLBACK), FALLBACK.encode("ab ab cd"))) == "ab ab cd"


def test_special_and_hidden_tokens_leave_no_text() -> None:
    hidden = BYTES.encode("q")[0]
    detokenizer = make_detokenizer(BYTES, hidden={hidden})
    assert detokenizer.push([0, hidden, *BYTES.encode("ok"), 1]) == "ok"


def test_window_stays_short_whatever_comes() -> None:
    detokenizer = WindowDetokenizer(FALLBACK, frozenset())
    broken = FALLBACK.encode("🙂")[-1]
    for _ in range(200):
        detokenizer.push([broken])
        assert len(detokenizer._window) <= 2 * MAX_PENDING_TOKENS + 2


def test_unknown_ids_are_silent() -> None:
    assert make_detokenizer(BYTES).push([10**6]) == ""


def test_token_outside_the_alphabet_is_its_own_text() -> None:
    assert token_bytes("日") == "日".encode()
