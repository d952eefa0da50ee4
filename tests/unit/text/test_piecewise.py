"""Pieces give the very tokens of the whole text, for every pre-tokenizer that is said to allow it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from daemons.text.piecewise import _KNOWN_SPLITS, PieceCache, can_cut, cut

CORPUS = [
    "the quick brown fox it's 12345 days' work, isn't it?\n\n  Indeed  so.",
    "größe naïve 日本 a b c",
] * 3


def gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2()])


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), plain])


def trained(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizer
    backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


BACKENDS = {
    "gpt2": trained(gpt2()),
    "digits": trained(digits()),
    **{
        f"split{index}": trained(split(pattern))
        for index, pattern in enumerate(sorted(_KNOWN_SPLITS))
    },
}

WORDS = st.sampled_from(
    [
        "the",
        "it's",
        " ",
        "  ",
        "\n",
        "12",
        ".",
        "é",
        "e\u0301",
        "日本",
        "a",
        "'s",
        "<|im_end|>",
        "Z z",
    ]
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=40).map("".join))


@pytest.mark.parametrize("name", BACKENDS)
@given(text=TEXTS)
@settings(deadline=None, max_examples=150)
def test_pieces_have_the_tokens_of_the_whole(name: str, text: str) -> None:
    backend = BACKENDS[name]
    assert can_cut(backend)
    pieces = cut(text, 1)
    assert "".join(pieces) == text
    assert [i for piece in pieces for i in backend.encode(piece).ids] == backend.encode(text).ids


def test_shared_prefix_is_encoded_once_and_old_pieces_are_forgotten() -> None:
    asked: list[str] = []

    def encode_batch(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return [[len(text)] for text in texts]

    cache = PieceCache(encode_batch, max_pieces=3)
    document = "some words of a document " * 100
    first = cache.encode(document + "question one")
    num_pieces = len(asked)
    assert num_pieces == 3
    assert cache.encode(document + "question two") == first
    assert len(asked) == num_pieces + 1
    for index in range(5):
        cache.encode(f"{index} " + document)
        assert len(cache._tokens) <= 3


def test_others_are_not_cut() -> None:
    spanning = trained(gpt2())
    spanning.add_tokens([AddedToken("New York")])
    prefixed = trained(pre_tokenizers.ByteLevel(add_prefix_space=True))
    unknown = trained(split(r"\w+ \w+"))
    metaspace = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    metaspace.pre_tokenizer = pre_tokenizers.Metaspace()
    bare = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    for backend in (spanning, prefixed, unknown, metaspace, bare):
        assert not can_cut(backend)
