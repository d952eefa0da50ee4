"""The HTTP client: what it makes of streams, errors and silence."""

import json
from collections.abc import Callable

import httpx
import pytest

from daemons.core.errors import (
    Exhausted,
    McError,
    NotFound,
    ProtocolError,
    Rejected,
    Unavailable,
)
from mcctl.openai_stream import OpenAiClient

Handler = Callable[[httpx.Request], httpx.Response]


def _client(handler: Handler) -> OpenAiClient:
    client = OpenAiClient("http://gateway/")
    client._http.close()
    client._http = httpx.Client(transport=httpx.MockTransport(handler))
    return client


def _stream(*events: object) -> Handler:
    lines = [
        f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events
    ]
    return lambda _: httpx.Response(200, text="".join(lines))


def _delta(text: str, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 130,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 128},
    },
    "mooncake": {"prefill": "p", "decode": "d", "pulled_bytes": 5, "timing": {"compute_s": 0.5}},
}


def test_stream_becomes_an_answer() -> None:
    pieces: list[str] = []
    handler = _stream(
        _delta(""), _delta("one "), _delta("two"), _delta("", "stop"), USAGE, "[DONE]"
    )
    with _client(handler) as client:
        answer = client.chat({"model": "m"}, pieces.append)
    assert answer.text == "one two"
    assert pieces == ["one ", "two"]
    assert answer.finish == "stop"
    assert (answer.prompt_tokens, answer.cached_tokens) == (130, 128)
    assert answer.mooncake.timing == {"compute_s": 0.5}
    assert 0 < answer.ttft_s <= answer.total_s


def test_request_asks_for_a_stream_with_usage() -> None:
    seen: list[dict[str, object]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return _stream(_delta("x", "stop"))(request)

    with _client(handler) as client:
        client.complete({"model": "m", "prompt": [1, 2]})
    assert seen[0]["stream"] is True
    assert seen[0]["stream_options"] == {"include_usage": True}
    assert seen[0]["prompt"] == [1, 2]


def test_answer_without_text_has_its_end_as_first_token() -> None:
    with _client(_stream(_delta("", "length"), USAGE)) as client:
        answer = client.complete({"model": "m"})
    assert answer.ttft_s == answer.total_s
    assert answer.tbt_s is None


@pytest.mark.parametrize(
    ("status", "family"),
    [
        (400, Rejected),
        (404, NotFound),
        (413, Rejected),
        (429, Exhausted),
        (503, Unavailable),
        (500, Unavailable),
    ],
)
def test_error_becomes_the_family_that_says_what_to_do(status: int, family: type[McError]) -> None:
    body = {"error": {"message": "no such model", "type": "x"}}
    client = _client(lambda _: httpx.Response(status, json=body))
    with client, pytest.raises(family, match="no such model"):
        client.chat({"model": "m"})


def test_retry_after_is_told() -> None:
    response = httpx.Response(503, text="oops", headers={"retry-after": "2"})
    with _client(lambda _: response) as client, pytest.raises(Unavailable, match="again in 2 s"):
        client.models()


def test_stream_that_breaks_off_is_an_error() -> None:
    with _client(_stream(_delta("half"))) as client, pytest.raises(Unavailable, match="complete"):
        client.chat({"model": "m"})


def test_error_inside_a_stream_is_raised() -> None:
    handler = _stream(_delta("half"), {"error": {"message": "decode node died"}})
    with _client(handler) as client, pytest.raises(Unavailable, match="decode node died"):
        client.chat({"model": "m"})


def test_malformed_event_is_a_protocol_error() -> None:
    with _client(_stream("{not json")) as client, pytest.raises(ProtocolError):
        client.chat({"model": "m"})


def test_no_gateway_is_one_line() -> None:
    with (
        OpenAiClient("http://127.0.0.1:1") as client,
        pytest.raises(Unavailable, match="no gateway at"),
    ):
        client.models()


def test_certificates_are_checked_but_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[object] = []
    monkeypatch.setattr(httpx, "Client", lambda **given: verified.append(given["verify"]))
    for url in ("http://h:8000/", "https://h", "HTTPS://h"):
        OpenAiClient(url)
    assert verified == [False, True, True]
