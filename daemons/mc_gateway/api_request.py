"""Bodies of the two endpoints as structs, and what they ask for once checked. Pure.

Every field of OpenAI's API is either obeyed, ignored because it cannot change the answer here, or refused by name
when it asks for something this server does not do. Unknown fields are refused: a misspelt one would be lost silently.
"""

import difflib
import re
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from daemons.mc_gateway.api_error import ApiError, bad_request
from daemons.protocol.request import CacheUse

MAX_STOPS: Final = 4
MAX_STOP_CHARS: Final = 1024
MAX_PROMPTS: Final = 64
SEED_LIMIT: Final = 2**63

Json = dict[str, msgspec.Raw]


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """Unknown fields pass: clients send answers back with all that came with them."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: msgspec.Raw | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = False


class _Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Extras of this server.
    top_k: int | None = None
    ignore_eos: bool | None = None
    kv_cache: CacheUse | None = None
    # Refused unless they say what happens anyway.
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Json | None = None
    # Ignored.
    user: msgspec.Raw | None = None
    metadata: msgspec.Raw | None = None


class ChatBody(_Common, frozen=True, kw_only=True):
    """POST /v1/chat/completions"""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, object] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[msgspec.Raw] | None = None
    functions: list[msgspec.Raw] | None = None
    tool_choice: str | Json | None = None
    function_call: str | Json | None = None
    response_format: Json | None = None
    modalities: list[str] | None = None
    audio: Json | None = None
    web_search_options: Json | None = None
    parallel_tool_calls: msgspec.Raw | None = None
    prediction: msgspec.Raw | None = None
    prompt_cache_key: msgspec.Raw | None = None
    prompt_cache_options: msgspec.Raw | None = None
    prompt_cache_retention: msgspec.Raw | None = None
    reasoning_effort: msgspec.Raw | None = None
    safety_identifier: msgspec.Raw | None = None
    service_tier: msgspec.Raw | None = None
    store: msgspec.Raw | None = None
    verbosity: msgspec.Raw | None = None


class CompletionBody(_Common, frozen=True, kw_only=True):
    """POST /v1/completions; `prompt` is a string, token ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None


Body = TypeVar("Body", ChatBody, CompletionBody)


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


def parse_body(body: bytes, kind: type[Body]) -> Body:
    """Raises ApiError 400 naming the parameter."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), kind) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise bad_request("the body nests too deep", code="invalid_json") from None


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


def prompts(body: CompletionBody) -> list[str | list[int]]:
    """One entry per choice: text, or token ids."""
    if isinstance(body.prompt, str):
        return [body.prompt]
    given = body.prompt
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
    _refuse(bool(body.logit_bias), "logit_bias", "logit_bias is not supported")
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
    return Options(
        model=body.model,
        max_tokens=max_tokens,
        max_tokens_param=name,
        temperature=temperature,
        top_p=max(top_p, 1e-6),
        top_k=max(top_k, 0),
        seed=None if body.seed is None else body.seed % SEED_LIMIT,
        stops=_stops(body.stop),
        ignore_eos=bool(body.ignore_eos),
        is_stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        cache=body.kv_cache or "use",
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
        _refuse(bool(getattr(body, name)), name, "tool calling is not supported; send no tools")
    for name in ("tool_choice", "function_call"):
        _refuse(
            getattr(body, name) not in (None, "none", "auto"), name, "tool calling is not supported"
        )
    _refuse(bool(body.audio), "audio", "only text is supported")
    _refuse(body.modalities not in (None, [], ["text"]), "modalities", "only text is supported")
    _refuse(bool(body.web_search_options), "web_search_options", "web search is not supported")
    form = (body.response_format or {}).get("type")
    _refuse(
        form is not None and bytes(form) != b'"text"',
        "response_format",
        "only plain text is supported",
    )


def _template_message(message: ChatMessage, index: int) -> dict[str, object]:
    place = f"messages[{index}]"
    if message.role not in ("system", "developer", "user", "assistant"):
        raise bad_request(
            f"role {message.role!r} is not supported; use system, developer, user or assistant",
            f"{place}.role",
        )
    if message.tool_calls or message.function_call not in (None, msgspec.Raw(b"null")):
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


def _explained(message: str, kind: type[msgspec.Struct]) -> ApiError:
    """msgspec says "Expected `int`, got `str` - at `$.max_tokens`"."""
    problem, _, place = message.partition(" - at `$")
    param = place.rstrip("`").lstrip(".") or None
    unknown = re.match(r"Object contains unknown field `(.*)`", problem)
    if unknown:
        name = unknown[1]
        close = difflib.get_close_matches(name, kind.__struct_fields__, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return bad_request(f"unknown parameter {name!r}{hint}", name, "unknown_parameter")
    missing = re.match(r"Object missing required field `(.*)`", problem)
    if missing:
        param = f"{param}.{missing[1]}" if param else missing[1]
        return bad_request(f"{param} is missing", param, "missing_parameter")
    where = f"{param}: " if param else ""
    return bad_request(f"{where}{problem[:1].lower()}{problem[1:]}", param, "invalid_type")


def _require(is_fine: bool, param: str, message: str) -> None:
    if not is_fine:
        raise bad_request(message, param)


def _refuse(is_asked: bool, param: str, message: str) -> None:
    if is_asked:
        raise bad_request(message, param, "unsupported_parameter")
