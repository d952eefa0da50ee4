"""The two endpoints that generate: read, check, prepare, start, deliver; and free everything however it ends."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from daemons.client.generate import GenerationRequest
from daemons.config.mc_gateway import RequestSection
from daemons.core.errors import McError
from daemons.core.ids import RequestId, new_request_id
from daemons.mc_gateway.access_log import AccessLog
from daemons.mc_gateway.answer import Answer, Choice
from daemons.mc_gateway.api_body import ChatBody, CompletionBody, parse_body
from daemons.mc_gateway.api_error import ApiError, from_mc_error, overloaded
from daemons.mc_gateway.api_reply import (
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
from daemons.mc_gateway.outbound import Outbound
from daemons.mc_gateway.prompt import Preparer, fitted_max_tokens, generation_request
from daemons.mc_gateway.visit import Front, Visit
from daemons.text.detokenizer import make_detokenizer

log = logging.getLogger(__name__)

CLIENT_LEFT: Final = 499


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
    front: Front
    access: AccessLog | None = None


class Slots:
    """Requests in flight, bounded."""

    def __init__(self, max_requests: int) -> None:
        self.num_used = 0
        self._max_requests = max_requests
        self._num_arriving: Counter[str] = Counter()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Raises ApiError 429 when all are."""
        if self.num_used >= self._max_requests:
            raise overloaded(f"this gateway answers {self._max_requests} requests already")
        self.num_used += 1
        try:
            yield
        finally:
            self.num_used -= 1

    @contextlib.contextmanager
    def arriving(self, tenant: str) -> Iterator[None]:
        """Around reading a body, which costs a slow client nothing: those of one tenant take half of the slots at most.
        Raises ApiError 429.
        """
        if tenant and self._num_arriving[tenant] >= max(1, self._max_requests // 2):
            raise overloaded(
                f"{self._num_arriving[tenant]} requests of this tenant are still being sent"
            )
        self._num_arriving[tenant] += 1
        try:
            yield
        finally:
            self._num_arriving[tenant] -= 1


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request, ready to start: one generation per choice."""

    model: ServedModel
    options: Options
    requests: list[GenerationRequest]
    shape: Shape


Prepare = Callable[[Gateway, bytes, str], Awaitable[Job]]
"""The last is the tenant."""


async def prepare_chat(gateway: Gateway, raw: bytes, tenant: str) -> Job:
    body = parse_body(raw, ChatBody)
    options = chat_options(body)
    messages = template_messages(body)
    model = await gateway.catalog.find(options.model, tenant)
    tokens = await gateway.preparer.chat(model, messages, template_variables(body))
    request_id = new_request_id()
    shape = ChatShape(_envelope("chatcmpl", request_id, options))
    request = _request(gateway, model, tokens, options, request_id=request_id, param="messages")
    return Job(model, options, [request], shape)


async def prepare_completion(gateway: Gateway, raw: bytes, tenant: str) -> Job:
    body = parse_body(raw, CompletionBody)
    options = completion_options(body)
    given = prompts(body)
    model = await gateway.catalog.find(options.model, tenant)
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
        visit, status = Visit(), CLIENT_LEFT
        try:
            visit = self._gateway.front.open(scope)
            status = await self._answer(outbound, visit)
        except ApiError as error:
            status = await outbound.fail(error)
        except (ClientDisconnect, TimeoutError):
            status = CLIENT_LEFT
        except Exception:
            log.exception("request failed endpoint=%s", self._name)
            status = await outbound.fail(ApiError(500, "internal error; see the gateway's log"))
        finally:
            visit.close(status)
        self._gateway.metrics.requests.labels(self._name, str(status)).inc()

    async def _answer(self, outbound: Outbound, visit: Visit) -> int:
        gateway = self._gateway
        began_s = gateway.bridge.cluster.loop.clock()
        with gateway.slots.taken(), gateway.metrics.in_flight.track_inprogress():
            with gateway.slots.arriving(visit.tenant):
                request = Request(outbound.scope, outbound.receive)
                raw = await read_body(request, gateway.max_body_bytes)
            job = await self._prepare(gateway, raw, visit.tenant)
            del raw
            visit.reserve(job.options.model, job.requests)
            answer = self._start(job, began_s)
            visit.answered_by(answer)
            deliver = outbound.stream if job.options.is_stream else outbound.whole
            try:
                await unless_gone(outbound.receive, deliver(job.shape, answer))
            except McError as error:
                raise from_mc_error(error) from error
            finally:
                answer.cancel()
                gateway.metrics.retries.inc(answer.num_retries)
                if gateway.access is not None:
                    took_s = gateway.bridge.cluster.loop.clock() - began_s
                    gateway.access.record(job.requests, answer, took_s)
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
