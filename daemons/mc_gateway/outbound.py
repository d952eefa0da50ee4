"""How an answer, or why there is none, leaves on its connection: whole, or as server-sent events.

Headers are sent with the first token, so that whatever fails before it is an HTTP status a client can act on.
"""

import asyncio
import contextlib
import logging
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from daemons.mc_gateway.answer import Answer, Update
from daemons.mc_gateway.api_error import ApiError
from daemons.mc_gateway.api_reply import DONE, Shape
from daemons.service.bounded_log import BOUNDED

log = logging.getLogger(__name__)

STALLED_READER_S: Final = 120.0
"""A client that reads nothing for so long is treated as gone."""

SSE_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
}


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
            extra=BOUNDED,
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
