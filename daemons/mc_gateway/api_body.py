"""Bodies of the two endpoints as structs. Pure.

Only what cannot be large is decoded at once; the rest stays raw until its size is known, because decoding holds the
GIL: a mebibyte of small objects takes 50 ms, and all streams wait.
"""

import difflib
import re
from typing import Final, TypeVar

import msgspec

from daemons.core.units import KIB
from daemons.mc_gateway.api_error import ApiError, bad_request
from daemons.protocol.request import CacheUse

MAX_MESSAGES: Final = 10_000
"""Messages, and parts of their contents."""

COUNTED_BYTES: Final = 256 * KIB
"""Smaller bodies are decoded without counting what is in them."""

MAX_FIELD_BYTES: Final = 64 * KIB
"""Of a field that is neither a prompt nor messages."""

NULL: Final = msgspec.Raw(b"null")
"""msgspec keeps Raw out of unions: an absent field and null are the same here."""


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """Unknown fields pass: clients send answers back with all that came with them."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = False


class _Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: msgspec.Raw = NULL
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Extras of this server.
    top_k: int | None = None
    ignore_eos: bool | None = None
    kv_cache: CacheUse | None = None
    drafts: bool | None = None
    priority: int | None = None
    # Refused unless they say what happens anyway.
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: msgspec.Raw = NULL
    # Ignored.
    user: msgspec.Raw = NULL
    metadata: msgspec.Raw = NULL


class ChatBody(_Common, frozen=True, kw_only=True):
    """POST /v1/chat/completions"""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    chat_template_kwargs: msgspec.Raw = NULL
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: msgspec.Raw = NULL
    functions: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL
    response_format: msgspec.Raw = NULL
    modalities: msgspec.Raw = NULL
    audio: msgspec.Raw = NULL
    web_search_options: msgspec.Raw = NULL
    parallel_tool_calls: msgspec.Raw = NULL
    prediction: msgspec.Raw = NULL
    prompt_cache_key: msgspec.Raw = NULL
    prompt_cache_options: msgspec.Raw = NULL
    prompt_cache_retention: msgspec.Raw = NULL
    reasoning_effort: msgspec.Raw = NULL
    safety_identifier: msgspec.Raw = NULL
    service_tier: msgspec.Raw = NULL
    store: msgspec.Raw = NULL
    verbosity: msgspec.Raw = NULL


class CompletionBody(_Common, frozen=True, kw_only=True):
    """POST /v1/completions; `prompt` is a string, token ids, or a list of either."""

    prompt: msgspec.Raw
    logprobs: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None


Body = TypeVar("Body", ChatBody, CompletionBody)


def parse_body(body: bytes, kind: type[Body]) -> Body:
    """Raises ApiError 400 naming the parameter."""
    if (
        len(body) > COUNTED_BYTES
        and max(body.count(b'"role"'), body.count(b'"type"')) > MAX_MESSAGES
    ):
        raise bad_request(f"more than {MAX_MESSAGES} messages or parts; join some", "messages")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), kind) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise bad_request("the body nests too deep", code="invalid_json") from None


Value = TypeVar("Value")


def decode_field(raw: msgspec.Raw, decoder: msgspec.json.Decoder[Value], param: str) -> Value:
    """A field that was kept raw; raises ApiError 400."""
    if len(bytes(raw)) > MAX_FIELD_BYTES:
        raise bad_request(f"{param} is larger than {MAX_FIELD_BYTES} bytes", param)
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise bad_request(f"{param}: {error}", param, "invalid_type") from None
    except RecursionError:
        raise bad_request(f"{param} nests too deep", param, "invalid_type") from None


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
