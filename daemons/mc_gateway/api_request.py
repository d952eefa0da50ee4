"""What a body asks for, once checked. Pure.

Every field of OpenAI's API is either obeyed, ignored because it cannot change the answer here, or refused by name
when it asks for something this server does not do. Unknown fields are refused: a misspelt one would be lost silently.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from daemons.mc_gateway.api_body import (
    COUNTED_BYTES,
    NULL,
    ChatBody,
    ChatMessage,
    CompletionBody,
    ContentPart,
    decode_field,
)
from daemons.mc_gateway.api_error import bad_request
from daemons.protocol.request import CacheUse

MAX_STOPS: Final = 4
MAX_STOP_CHARS: Final = 1024
MAX_PROMPTS: Final = 64
MAX_PROMPT_IDS: Final = 2**18
MAX_PRIORITY: Final = 10

SEED_LIMIT: Final = 2**63

_NOTHING: Final = frozenset({b"null", b"[]", b"{}"})
_decode_prompt = msgspec.json.Decoder(str | list[str | int | list[int]]).decode


class _ResponseFormat(msgspec.Struct):
    type: str


_OBJECT: Final = msgspec.json.Decoder(dict[str, object] | None)
_STRINGS: Final = msgspec.json.Decoder(str | list[str] | None)
_FORMAT: Final = msgspec.json.Decoder(_ResponseFormat | None)


@dataclass(frozen=True, slots=True)
class Options:
    """What both endpoints ask for. `max_tokens` None: as much as the gateway's default and the context allow."""

    model: str
    max_tokens: int | None
    max_tokens_param: str
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    is_stream: bool
    include_usage: bool
    cache: CacheUse
    drafts: bool
    priority: int


def chat_options(body: ChatBody) -> Options:
    """Raises ApiError 400 for what is out of range or not supported."""
    _refuse_chat_extras(body)
    limit, name = body.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, name = body.max_tokens, "max_tokens"
    return _options(body, limit, name)


def completion_options(body: CompletionBody) -> Options:
    """Raises ApiError 400 for what is out of range or not supported."""
    _refuse(body.logprobs is not None, "logprobs", "log probabilities are not supported")
    _refuse(body.best_of not in (None, 1), "best_of", "only best_of=1 is supported")
    _refuse(bool(body.echo), "echo", "echoing the prompt is not supported")
    _refuse(bool(body.suffix), "suffix", "text after the completion is not supported")
    return _options(body, body.max_tokens, "max_tokens")


def template_messages(body: ChatBody) -> list[dict[str, object]]:
    """Messages as chat templates expect them: plain string contents."""
    if not body.messages:
        raise bad_request("messages is empty; send at least one message", "messages")
    return [_template_message(message, index) for index, message in enumerate(body.messages)]


def template_variables(body: ChatBody) -> dict[str, object]:
    """Extra names for the chat template."""
    given = decode_field(body.chat_template_kwargs, _OBJECT, "chat_template_kwargs")
    return given or {}


def prompts(body: CompletionBody) -> list[str | list[int]]:
    """One entry per choice: text, or token ids."""
    raw = bytes(body.prompt)
    if raw.startswith(b"[") and len(raw) > COUNTED_BYTES and raw.count(b",") > MAX_PROMPT_IDS:
        raise bad_request(f"prompt lists more than {MAX_PROMPT_IDS} items", "prompt")
    try:
        given = _decode_prompt(raw)
    except msgspec.DecodeError as error:  # text that is no UTF-8 is only found here
        raise bad_request(f"prompt: {error}", "prompt", "invalid_type") from None
    if isinstance(given, str):
        return [given]
    if not given:
        raise bad_request("prompt is an empty list", "prompt")
    if all(isinstance(item, int) for item in given):
        return [[item for item in given if isinstance(item, int)]]
    mixed = "prompt must be a string, token ids, or a list of only strings or only token-id lists"
    if len({type(item) for item in given}) > 1:
        raise bad_request(mixed, "prompt")
    if len(given) > MAX_PROMPTS:
        raise bad_request(
            f"prompt holds {len(given)} prompts; send {MAX_PROMPTS} or fewer", "prompt"
        )
    return [item for item in given if not isinstance(item, int)]


def _options(body: ChatBody | CompletionBody, max_tokens: int | None, name: str) -> Options:
    _refuse(body.n not in (None, 1), "n", "only n=1 is supported; send the request n times")
    for penalty in ("presence_penalty", "frequency_penalty"):
        _refuse(bool(getattr(body, penalty)), penalty, f"{penalty} is not supported; leave it at 0")
    _refuse(_asks(body.logit_bias), "logit_bias", "logit_bias is not supported")
    top_k = body.top_k or 0
    temperature = 1.0 if body.temperature is None else body.temperature
    top_p = 1.0 if body.top_p is None else body.top_p
    _require(
        max_tokens is None or max_tokens >= 1, name, f"{name} is {max_tokens}; it must be 1 or more"
    )
    _require(
        0 <= temperature <= 2, "temperature", f"temperature is {temperature:g}; it must be 0 to 2"
    )
    _require(0 <= top_p <= 1, "top_p", f"top_p is {top_p:g}; it must be 0 to 1")
    _require(
        -1 <= top_k < 2**31, "top_k", f"top_k is {top_k}; it must be 1 or more, or 0 to turn it off"
    )
    _require(
        body.seed is None or -SEED_LIMIT <= body.seed < SEED_LIMIT,
        "seed",
        "seed must fit in 64 bits",
    )
    priority = body.priority or 0
    _require(
        abs(priority) <= MAX_PRIORITY,
        "priority",
        f"priority is {priority}; it must be {-MAX_PRIORITY} to {MAX_PRIORITY}",
    )
    return Options(
        model=body.model,
        max_tokens=max_tokens,
        max_tokens_param=name,
        temperature=temperature,
        top_p=max(top_p, 1e-6),
        top_k=max(top_k, 0),
        seed=None if body.seed is None else body.seed % SEED_LIMIT,
        stops=_stops(decode_field(body.stop, _STRINGS, "stop")),
        ignore_eos=bool(body.ignore_eos),
        is_stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        cache=body.kv_cache or "use",
        drafts=body.drafts is not False,
        priority=priority,
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else (stop or [])
    _require(
        len(stops) <= MAX_STOPS,
        "stop",
        f"stop holds {len(stops)} strings; send {MAX_STOPS} or fewer",
    )
    _require(all(stops), "stop", "stop holds an empty string")
    _require(
        all(len(text) <= MAX_STOP_CHARS for text in stops),
        "stop",
        f"a stop string is longer than {MAX_STOP_CHARS} characters",
    )
    return tuple(stops)


def _refuse_chat_extras(body: ChatBody) -> None:
    _refuse(bool(body.logprobs), "logprobs", "log probabilities are not supported")
    _refuse(bool(body.top_logprobs), "top_logprobs", "log probabilities are not supported")
    for name in ("tools", "functions"):
        _refuse(_asks(getattr(body, name)), name, "tool calling is not supported; send no tools")
    for name in ("tool_choice", "function_call"):
        choice = getattr(body, name)
        _refuse(
            _asks(choice) and bytes(choice) not in (b'"none"', b'"auto"'),
            name,
            "tool calling is not supported",
        )
    _refuse(_asks(body.audio), "audio", "only text is supported")
    modalities = decode_field(body.modalities, _STRINGS, "modalities")
    _refuse(modalities not in (None, [], ["text"]), "modalities", "only text is supported")
    _refuse(_asks(body.web_search_options), "web_search_options", "web search is not supported")
    form = decode_field(body.response_format, _FORMAT, "response_format")
    _refuse(
        form is not None and form.type != "text", "response_format", "only plain text is supported"
    )


def _asks(field: msgspec.Raw) -> bool:
    """Whether a raw field holds something."""
    return bytes(field) not in _NOTHING


def _template_message(message: ChatMessage, index: int) -> dict[str, object]:
    place = f"messages[{index}]"
    if message.role not in ("system", "developer", "user", "assistant"):
        raise bad_request(
            f"role {message.role!r} is not supported; use system, developer, user or assistant",
            f"{place}.role",
        )
    if _asks(message.tool_calls) or message.function_call != NULL:
        raise bad_request("tool calling is not supported", f"{place}.tool_calls")
    role = "system" if message.role == "developer" else message.role
    shown: dict[str, object] = {"role": role, "content": _content(message.content, place)}
    if message.name is not None:
        shown["name"] = message.name
    return shown


def _content(content: str | list[ContentPart] | None, place: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise bad_request("content is missing", f"{place}.content")
    for part in content:
        if part.type != "text" or part.text is None:
            raise bad_request(
                f"content of type {part.type!r} is not supported; send only text",
                f"{place}.content",
            )
    return "".join(part.text or "" for part in content)


def _require(is_fine: bool, param: str, message: str) -> None:
    if not is_fine:
        raise bad_request(message, param)


def _refuse(is_asked: bool, param: str, message: str) -> None:
    if is_asked:
        raise bad_request(message, param, "unsupported_parameter")
