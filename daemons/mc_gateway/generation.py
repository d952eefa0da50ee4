"""The two endpoints that generate: read, check, prepare, start, deliver; and free everything however it ends.

Headers are sent with the first token, so that whatever fails before it is an HTTP status a client can act on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from daemons.client.generate import GenerationRequest
from daemons.config.mc_gateway import RequestSection
from daemons.core.errors import McError
from daemons.core.ids import RequestId, new_request_id
from daemons.mc_gateway.answer import Answer, Choice, Update
from daemons.mc_gateway.api_body import ChatBody, CompletionBody, parse_body
from daemons.mc_gateway.api_error import ApiError, from_mc_error, overloaded
from daemons.mc_gateway.api_reply import (
    DONE,
    ChatShape,
    CompletionShape,
    Envelope,
    Shape,
    now_unix,
)
from daemons.mc_gateway.api_request import (
    Options,
    chat_options,
    completion_options,
    prompts,
    template_messages,
    template_variables,
)
from daemons.mc_gateway.body import read_body
from daemons.mc_gateway.bridge import Bridge
from daemons.mc_gateway.catalog import Catalog, ServedModel
from daemons.mc_gateway.metrics import GatewayMetrics
from daemons.mc_gateway.prompt import Preparer, fitted_max_tokens, generation_request
from daemons.text.detokenizer import make_detokenizer

log = logging.getLogger(__name__)

STALLED_READER_S: Final = 120.0
"""A client that reads nothing for so long is treated as gone."""

CLIENT_LEFT: Final = 499
SSE_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the endpoints share."""

    bridge: Bridge
    catalog: Catalog
    preparer: Preparer
    metrics: GatewayMetrics
    settings: RequestSection
    max_body_bytes: int
    slots: "Slots"


class Slots:
    """Requests in flight, bounded."""

    def __init__(self, max_requests: int) -> None:
        self.num_used = 0
        self._max_requests = max_requests

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Raises ApiError 503 when all are."""
        if self.num_used >= self._max_requests:
            raise overloaded(f"this gateway answers {self._max_requests} requests already")
        self.num_used += 1
        try:
            yield
        finally:
            self.num_used -= 1


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request, ready to start: one generation per choice."""

    model: ServedModel
    options: Options
    requests: list[GenerationRequest]
    shape: Shape


Prepare = Callable[[Gateway, bytes], Awaitable[Job]]


async def prepare_chat(gateway: Gateway, raw: bytes) -> Job:
    body = parse_body(raw, ChatBody)
    options = chat_options(body)
    messages = template_messages(body)
    model = await gateway.catalog.find(options.model)
    tokens = await gateway.preparer.chat(model, messages, template_variables(body))
    request_id = new_request_id()
    shape = ChatShape(_envelope("chatcmpl", request_id, options))
    request = _request(gateway, model, tokens, options, request_id=request_id, param="messages")
    return Job(model, options, [request], shape)


async def prepare_completion(gateway: Gateway, raw: bytes) -> Job:
    body = parse_body(raw, CompletionBody)
    options = completion_options(body)
    given = prompts(body)
    model = await gateway.catalog.find(options.model)
    request_id = new_request_id()
    requests = []
    for index, prompt in enumerate(given):
        own_id = RequestId(f"{request_id}-{index}") if index else request_id
        tokens = await gateway.preparer.completion(model, prompt)
        requests.append(
            _request(gateway, model, tokens, options, request_id=own_id, param="prompt")
        )
    return Job(model, options, requests, CompletionShape(_envelope("cmpl", request_id, options)))


def _envelope(prefix: str, request_id: RequestId, options: Options) -> Envelope:
    return Envelope(f"{prefix}-{request_id}", options.model, now_unix(), options.include_usage)


def _request(
    gateway: Gateway,
    model: ServedModel,
    tokens: list[int],
    options: Options,
    *,
    request_id: RequestId,
    param: str,
) -> GenerationRequest:
    default = gateway.settings.default_max_tokens
    max_tokens = fitted_max_tokens(model, len(tokens), options, default=default, param=param)
    return generation_request(model, tokens, options, max_tokens=max_tokens, request_id=request_id)


class GenerationEndpoint:
    """An ASGI application for one path."""

    def __init__(self, gateway: Gateway, name: str, prepare: Prepare) -> None:
        self._gateway = gateway
        self._name = name
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outbound = Outbound(scope, receive, send)
        try:
            status = await self._answer(outbound)
        except ApiError as error:
            status = await outbound.fail(error)
        except (ClientDisconnect, TimeoutError):
            status = CLIENT_LEFT
        except Exception:
            log.exception("request failed endpoint=%s", self._name)
            status = await outbound.fail(ApiError(500, "internal error; see the gateway's log"))
        self._gateway.metrics.requests.labels(self._name, str(status)).inc()

    async def _answer(self, outbound: "Outbound") -> int:
        gateway = self._gateway
        began_s = gateway.bridge.cluster.loop.clock()
        with gateway.slots.taken(), gateway.metrics.in_flight.track_inprogress():
            raw = await read_body(Request(outbound.scope, outbound.receive), gateway.max_body_bytes)
            job = await self._prepare(gateway, raw)
            del raw
            answer = self._start(job, began_s)
            deliver = outbound.stream if job.options.is_stream else outbound.whole
            try:
                await unless_gone(outbound.receive, deliver(job.shape, answer))
            except McError as error:
                raise from_mc_error(error) from error
            finally:
                answer.cancel()
                gateway.metrics.retries.inc(answer.num_retries)
            gateway.metrics.record(answer.results)
        return 200

    def _start(self, job: Job, began_s: float) -> Answer:
        gateway, ready = self._gateway, asyncio.Event()
        choices = [
            Choice(
                gateway.bridge.start(request, gateway.settings.timeout_s, ready),
                make_detokenizer(job.model.tokenizer, hidden=job.model.hidden_tokens),
                job.options.stops,
                len(request.tokens),
            )
            for request in job.requests
        ]
        clock = gateway.bridge.cluster.loop.clock
        return Answer(choices, ready, metrics=gateway.metrics, clock=clock, began_s=began_s)


async def unless_gone(receive: Receive, work: Coroutine[object, object, None]) -> None:
    """Do `work`, but stop it at once when the client leaves: then raises ClientDisconnect."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_client_leaves(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        await working
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Outbound:
    """The connection's way out; knows whether headers were sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self._send = send
        self._is_streaming = False
        self._is_complete = False

    async def whole(self, shape: Shape, answer: Answer) -> None:
        body = shape.whole(await answer.whole())
        await self._respond(Response(body, media_type="application/json"))

    async def stream(self, shape: Shape, answer: Answer) -> None:
        """The last event before [DONE] carries the `mooncake` object."""
        num_left = len(answer.choices)
        opened: set[int] = set()
        async for updates in answer.updates():
            num_left -= sum(update.result is not None for update in updates)
            events = []
            for update in updates:
                events += _opening(shape, update, opened)
                events += _events(shape, update, has_usage_event=shape.envelope.has_usage)
            if num_left == 0:
                if shape.envelope.has_usage:
                    events.append(shape.usage(answer.results))
                events.append(DONE)
            if events:
                await self._events(b"".join(events), is_last=num_left == 0)

    async def fail(self, error: ApiError) -> int:
        """As a response, or as the last event of a stream that has begun."""
        log.log(
            logging.INFO if error.status >= 500 else logging.DEBUG,
            "request refused status=%d why=%s",
            error.status,
            error.message,
        )
        if self._is_complete:
            return error.status
        with contextlib.suppress(TimeoutError, OSError):
            if self._is_streaming:
                await self._events(b"data: " + error.body() + b"\n\n" + DONE, is_last=True)
            else:
                await self._respond(error_response(error))
        return error.status

    async def _respond(self, response: Response) -> None:
        self._is_complete = True
        async with asyncio.timeout(STALLED_READER_S):
            await response(self.scope, self.receive, self._send)

    async def _events(self, payload: bytes, *, is_last: bool) -> None:
        async with asyncio.timeout(STALLED_READER_S):
            if not self._is_streaming:
                self._is_streaming = True
                headers = [(name.encode(), value.encode()) for name, value in SSE_HEADERS.items()]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            self._is_complete = is_last
            await self._send(
                {"type": "http.response.body", "body": payload, "more_body": not is_last}
            )


def _opening(shape: Shape, update: Update, opened: set[int]) -> list[bytes]:
    if update.index in opened:
        return []
    opened.add(update.index)
    event = shape.opening(update.index)
    return [] if event is None else [event]


def _events(shape: Shape, update: Update, *, has_usage_event: bool) -> list[bytes]:
    events = [shape.delta(update.index, update.text)] if update.text else []
    if update.result is not None:
        mooncake = None if has_usage_event else update.result.mooncake
        events.append(shape.finish(update.index, update.result.finish, mooncake))
    return events


def error_response(error: ApiError) -> Response:
    headers = error.headers()
    if error.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not wanted
    return Response(
        error.body(), status_code=error.status, headers=headers, media_type="application/json"
    )
