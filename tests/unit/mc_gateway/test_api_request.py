"""Bodies: what is obeyed, what is refused and by which name."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.mc_gateway.api_body import ChatBody, CompletionBody, parse_body
from daemons.mc_gateway.api_error import ApiError
from daemons.mc_gateway.api_request import (
    MAX_PROMPT_IDS,
    MAX_STOP_CHARS,
    Options,
    chat_options,
    completion_options,
    prompts,
    template_messages,
    template_variables,
)

USER = {"role": "user", "content": "hi"}


def chat(**fields: object) -> ChatBody:
    return parse_body(json.dumps({"model": "m", "messages": [USER]} | fields).encode(), ChatBody)


def completion(prompt: object, **fields: object) -> CompletionBody:
    return parse_body(
        json.dumps({"model": "m", "prompt": prompt} | fields).encode(), CompletionBody
    )


def check(**fields: object) -> None:
    body = chat(**fields)
    template_messages(body)
    template_variables(body)
    chat_options(body)


def refused(**fields: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check(**fields)
    assert caught.value.status == 400
    return caught.value


def test_text_that_is_no_utf8_is_the_clients_error() -> None:
    body = parse_body(b'{"model": "m", "prompt": "\xff"}', CompletionBody)
    with pytest.raises(ApiError) as caught:
        prompts(body)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


@pytest.mark.parametrize(
    "name", ["response_format", "chat_template_kwargs", "modalities", "tools", "metadata"]
)
def test_nesting_to_any_depth_is_the_clients_error_or_fine(name: str) -> None:
    """A field kept raw is decoded at another depth of the stack than where it was skipped over."""
    limit = sys.getrecursionlimit()
    statuses = set()
    for depth in range(limit - 200, limit + 20):
        nested = '{"type": "text", "a": ' + "[" * depth + "]" * depth + "}"
        raw = f'{{"model": "m", "messages": [{json.dumps(USER)}], "{name}": {nested}}}'.encode()
        try:
            body = parse_body(raw, ChatBody)
            template_variables(body)
            chat_options(body)
        except ApiError as error:
            statuses.add(error.status)
    assert statuses == {400}


def test_defaults_are_openais() -> None:
    assert chat_options(chat()) == Options(
        model="m",
        max_tokens=None,
        max_tokens_param="max_tokens",
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        seed=None,
        stops=(),
        ignore_eos=False,
        is_stream=False,
        include_usage=False,
        cache="use",
        drafts=True,
        priority=0,
    )


def test_null_is_absent() -> None:
    names = [name for name in ChatBody.__struct_fields__ if name not in ("model", "messages")]
    assert chat_options(chat(**dict.fromkeys(names))) == chat_options(chat())


def test_values_are_taken_over() -> None:
    options = chat_options(
        chat(
            max_tokens=5,
            max_completion_tokens=6,
            temperature=0,
            top_p=0,
            top_k=-1,
            seed=-1,
            stop="x",
            stream=True,
            stream_options={"include_usage": True, "include_obfuscation": False},
            kv_cache="bypass",
            drafts=False,
            ignore_eos=True,
        )
    )
    assert (options.max_tokens, options.max_tokens_param) == (6, "max_completion_tokens")
    assert 0 < options.top_p < 1e-3
    assert options.seed == 2**63 - 1
    assert (options.temperature, options.top_k, options.stops) == (0, 0, ("x",))
    assert options.is_stream
    assert options.include_usage
    assert options.ignore_eos
    assert options.cache == "bypass"
    assert not options.drafts
    assert chat_options(chat()).drafts


def test_what_cannot_change_the_answer_is_ignored() -> None:
    chat_options(
        chat(
            user="u",
            metadata={"a": "b"},
            store=True,
            n=1,
            logprobs=False,
            tools=[],
            tool_choice="auto",
            response_format={"type": "text"},
            modalities=["text"],
            presence_penalty=0,
            logit_bias={},
            reasoning_effort="high",
            parallel_tool_calls=True,
        )
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", 2.5),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 2**40),
        ("seed", 2**70),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", "7"),
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("logit_bias", {"5": 1}),
        ("tools", [{"type": "function"}]),
        ("functions", [{}]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function"}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {}),
        ("modalities", ["audio"]),
        ("audio", {"voice": "x"}),
        ("web_search_options", {"x": 1}),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", [""]),
        ("stop", 3),
        ("stop", "x" * (MAX_STOP_CHARS + 1)),
        ("stop", ["x" * 30_000] * 4),
        ("kv_cache", "maybe"),
        ("stream", "yes"),
        ("messages", []),
        ("messages", "hi"),
        ("chat_template_kwargs", [1]),
        ("temprature", 1),
    ],
)
def test_refusals_name_the_field(field: str, value: object) -> None:
    error = refused(**{field: value})
    assert error.param == field
    assert error.message


def test_misspelt_field_gets_a_hint() -> None:
    assert "did you mean 'temperature'" in refused(temprature=1).message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 3}, "messages[0].content"),
    ],
)
def test_bad_messages_are_placed(message: object, param: str) -> None:
    assert refused(messages=[message]).param == param


def test_messages_become_what_templates_expect() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer: dict[str, object] = {
        "role": "assistant",
        "content": "c",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
    }
    body = chat(
        messages=[{"role": "developer", "content": parts}, answer, {**USER, "name": "ann"}],
        chat_template_kwargs={"enable_thinking": False},
    )
    assert template_messages(body) == [
        {"role": "system", "content": "ab"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "hi", "name": "ann"},
    ]
    assert template_variables(body) == {"enable_thinking": False}


def test_prompts_of_every_form() -> None:
    assert prompts(completion("a")) == ["a"]
    assert prompts(completion([1, 2])) == [[1, 2]]
    assert prompts(completion(["a", "b"])) == ["a", "b"]
    assert prompts(completion([[1], [2, 3]])) == [[1], [2, 3]]


@pytest.mark.parametrize("prompt", [[], ["a", 1], [[1], 2], 5, {}, [None], ["x"] * 65, [True]])
def test_bad_prompts(prompt: object) -> None:
    with pytest.raises(ApiError) as caught:
        prompts(completion(prompt))
    assert caught.value.param == "prompt"


def test_masses_of_small_things_are_refused_uncounted() -> None:
    with pytest.raises(ApiError, match="items"):
        prompts(completion([1] * (MAX_PROMPT_IDS + 2)))
    with pytest.raises(ApiError, match="messages or parts"):
        chat(messages=[USER] * 20_000)


@pytest.mark.parametrize(
    "field", [{"logprobs": 0}, {"best_of": 2}, {"echo": True}, {"suffix": "x"}]
)
def test_completion_extras_are_refused(field: dict[str, object]) -> None:
    with pytest.raises(ApiError) as caught:
        completion_options(completion("a", **field))
    assert caught.value.param in field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(fields=st.dictionaries(st.sampled_from(ChatBody.__struct_fields__), JSON, max_size=4))
@settings(deadline=None, max_examples=400)
def test_any_json_is_options_or_a_400(fields: dict[str, object]) -> None:
    error = None
    try:
        check(**fields)
    except ApiError as caught:
        error = caught
    assert error is None or error.status == 400


@given(raw=st.binary(max_size=40))
def test_any_bytes_are_a_400(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(raw, ChatBody)
    assert caught.value.status == 400
