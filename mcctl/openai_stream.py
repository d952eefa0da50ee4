"""Requests to the gateway's OpenAI API, streamed, with the time of every piece; raises McError families.

The gateway adds an object `mooncake` to the last event: where the request ran and what it reused.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import httpx
import msgspec

from daemons.core.errors import Exhausted, McError, NotFound, ProtocolError, Rejected, Unavailable
from daemons.protocol.base import MALFORMED

CacheUse = Literal["use", "bypass"]
Body = dict[str, Any]

_CONNECT_S: Final = 15.0


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class Mooncake(msgspec.Struct):
    """What the cluster says it did for one request. Fields may be missing from an older gateway."""

    request_id: str = ""
    prefill: str = ""
    decode: str = ""
    reused_tokens: int = 0
    published_blocks: int = 0
    ttft_s: float = 0.0
    predicted_ttft_s: float = 0.0
    pulled_bytes: int = 0
    loaded_bytes: int = 0
    num_retries: int = 0
    timing: dict[str, float] = msgspec.field(default_factory=dict)


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> str:
        return self.text or (self.delta.content if self.delta else None) or ""


class _ErrorBody(msgspec.Struct):
    message: str = ""


class _Event(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    mooncake: Mooncake | None = None
    error: _ErrorBody | None = None


_decode_event = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True)
class Answer:
    """A finished stream. Times are the client's: from before the request was sent."""

    text: str = ""
    finish: str = ""
    piece_times_s: list[float] = field(default_factory=list)
    total_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    mooncake: Mooncake = field(default_factory=Mooncake)

    @property
    def ttft_s(self) -> float:
        """The first piece of text; an answer without text has its end."""
        return self.piece_times_s[0] if self.piece_times_s else self.total_s

    @property
    def tbt_s(self) -> float | None:
        """Mean time between tokens after the first."""
        if self.completion_tokens < 2 or not self.piece_times_s:
            return None
        return (self.piece_times_s[-1] - self.piece_times_s[0]) / (self.completion_tokens - 1)


class OpenAiClient:
    """Keeps one connection per request in flight, however many. `timeout_s` bounds the silence between two pieces."""

    def __init__(self, url: str, *, timeout_s: float = 120.0, api_key: str = "") -> None:
        self.url = url.rstrip("/")
        # trust_env off: a proxy for the outside world must not see a cluster's traffic.
        self._http = httpx.Client(
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
            # By default the 101st request waits for a connection here, which would look like the gateway's time.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
            # The certificates of those to trust take 50 ms to load.
            verify=not self.url.startswith("http:"),
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
        )

    def models(self) -> list[str]:
        """Names of the models that are served now."""
        with _translated(self.url):
            response = self._http.get(f"{self.url}/v1/models")
            _raise_for(response)
            return [str(model["id"]) for model in response.json()["data"]]

    def chat(self, body: Body, on_piece: Callable[[str], object] = lambda _: None) -> Answer:
        """POST /v1/chat/completions."""
        return self._stream("/v1/chat/completions", body, on_piece)

    def complete(self, body: Body, on_piece: Callable[[str], object] = lambda _: None) -> Answer:
        """POST /v1/completions; `prompt` may be token ids, for exact lengths."""
        return self._stream("/v1/completions", body, on_piece)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> "OpenAiClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(self, path: str, body: Body, on_piece: Callable[[str], object]) -> Answer:
        answer = Answer()
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        started_s = time.perf_counter()
        with (
            _translated(self.url),
            self._http.stream("POST", self.url + path, json=body) as response,
        ):
            if response.is_error:
                response.read()
                _raise_for(response)
            for event in _events(response):
                now_s = time.perf_counter() - started_s
                for choice in event.choices:
                    if choice.piece:
                        answer.piece_times_s.append(now_s)
                        answer.text += choice.piece
                        on_piece(choice.piece)
                    answer.finish = choice.finish_reason or answer.finish
                if event.usage is not None:
                    answer.prompt_tokens = event.usage.prompt_tokens
                    answer.completion_tokens = event.usage.completion_tokens
                    details = event.usage.prompt_tokens_details
                    answer.cached_tokens = details.cached_tokens if details else 0
                answer.mooncake = event.mooncake or answer.mooncake
        answer.total_s = time.perf_counter() - started_s
        if not answer.finish:
            raise Unavailable(f"{self.url} ended the stream before the answer was complete")
        return answer


def _events(response: httpx.Response) -> Iterator[_Event]:
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        try:
            event = _decode_event(data)
        except MALFORMED as error:
            raise ProtocolError(f"an event of the stream is malformed: {error}") from None
        if event.error is not None:
            raise Unavailable(event.error.message or "the stream ended with an error")
        yield event


class _translated:  # noqa: N801 - reads as a phrase
    """Turns what httpx raises into one line that names the gateway."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            raise Unavailable(
                f"no gateway at {self._url}; is mc-gateway running? --url names another"
            ) from None
        if isinstance(error, httpx.TimeoutException):
            raise Unavailable(f"the gateway at {self._url} went silent") from None
        if isinstance(error, httpx.HTTPError | httpx.InvalidURL):
            raise Unavailable(f"the gateway at {self._url} failed: {error}") from None


def _raise_for(response: httpx.Response) -> None:
    """OpenAI's error shape -> the family that says what can be done about it."""
    if not response.is_error:
        return
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {response.status_code} {response.reason_phrase}"
    retry_after = response.headers.get("retry-after", "")
    families: dict[int, type[McError]] = {404: NotFound, 429: Exhausted, 503: Unavailable}
    default = Rejected if response.status_code < 500 else Unavailable
    family = families.get(response.status_code, default)
    if retry_after:
        message += f" (try again in {retry_after} s)"
    raise family(message)
