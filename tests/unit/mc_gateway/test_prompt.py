"""Prompts against a model's limits, and the request that goes to the cluster."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from daemons.core.ids import RequestId
from daemons.mc_gateway.api_body import ChatBody, parse_body
from daemons.mc_gateway.api_error import ApiError
from daemons.mc_gateway.api_request import Options, chat_options
from daemons.mc_gateway.catalog import ServedModel
from daemons.mc_gateway.prompt import (
    chat_tokens,
    checked_tokens,
    fitted_max_tokens,
    generation_request,
    text_tokens,
)
from daemons.protocol.node import ModelDescription
from daemons.protocol.prefix_hash import block_hashes
from daemons.text.chat_template import compile_template
from daemons.text.tokenizer import Tokenizer


def model(
    template: str | None = "{{ messages[0].content }}", *, is_reuse_safe: bool = True
) -> ServedModel:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    chat_template = None if template is None else compile_template(template)
    description = ModelDescription(
        name="m",
        namespace=b"n" * 16,
        dtype="float32",
        block_tokens=16,
        chunk_tokens=64,
        max_context_tokens=100,
        num_layers=1,
        num_kv_heads=1,
        head_dim=8,
        vocab_size=256,
        eos_token_ids=[3],
        is_reuse_safe=is_reuse_safe,
    )
    return ServedModel(
        "m", Tokenizer(Path(), backend, {}, frozenset({2}), 100, chat_template), description
    )


def options(**fields: object) -> Options:
    body = parse_body(b'{"model":"m","messages":[]}', ChatBody)
    return chat_options(body.__class__(**({"model": "m", "messages": []} | fields)))  # type: ignore[arg-type]


MODEL = model()


def fit(num_prompt: int, max_tokens: int | None = None) -> int:
    return fitted_max_tokens(
        MODEL, num_prompt, options(max_tokens=max_tokens), default=50, param="prompt"
    )


def test_default_max_tokens_fills_what_the_context_leaves() -> None:
    assert fit(10) == 50
    assert fit(80) == 20
    assert fit(80, 20) == 20


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(0, None), (100, None), (101, 1), (81, 20)])
def test_what_does_not_fit_is_refused(num_prompt: int, max_tokens: int | None) -> None:
    with pytest.raises(ApiError) as caught:
        fit(num_prompt, max_tokens)
    assert caught.value.param == "prompt"


def test_overflow_says_what_to_do() -> None:
    with pytest.raises(
        ApiError, match=r"100 tokens.*90 tokens and max_tokens=20.*lower max_tokens"
    ) as caught:
        fit(90, 20)
    assert caught.value.code == "context_length_exceeded"


def test_hopeless_text_is_refused_before_it_is_tokenized() -> None:
    with pytest.raises(ApiError, match="at least"):
        text_tokens(MODEL, "x" * 100_000)


def test_token_ids_are_checked() -> None:
    assert checked_tokens(MODEL, [0, 255]) == [0, 255]
    for bad in ([256], [-1]):
        with pytest.raises(ApiError):
            checked_tokens(MODEL, bad)


def test_templates_that_fail_are_a_400_on_messages() -> None:
    for source in (None, "{{ raise_exception('no') }}", "{% if"):
        with pytest.raises(ApiError) as caught:
            chat_tokens(model(source), [{"role": "user", "content": "x"}])
        assert (caught.value.status, caught.value.param) == (400, "messages")


def test_reuse_and_bypass() -> None:
    tokens = list(range(40))
    used = generation_request(MODEL, tokens, options(), max_tokens=5, request_id=RequestId("r"))
    assert used.hashes == block_hashes(b"n" * 16, tokens, 16)
    assert used.cache == "use"
    unsafe = model(is_reuse_safe=False)
    for served, asked in ((MODEL, options(kv_cache="bypass")), (unsafe, options())):
        bypassed = generation_request(
            served, tokens, asked, max_tokens=5, request_id=RequestId("r")
        )
        assert (bypassed.hashes, bypassed.cache) == ([], "bypass")


def test_seed_is_the_clients_or_random() -> None:
    seeds = {
        generation_request(
            MODEL, [1], options(seed=seed), max_tokens=5, request_id=RequestId("r")
        ).sampling.seed
        for seed in (7, 7, None, None)
    }
    assert len(seeds) == 3
    assert 7 in seeds


def test_both_sources_of_end_tokens_are_hidden() -> None:
    assert MODEL.hidden_tokens == {2, 3}
