"""One HTTP connection: closed when a request does not come whole in time, so that idle ones cannot pile up, and at
once where it is one too many: what the gateway itself must open still finds room.
"""

import asyncio
import errno
import logging
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

_NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class HttpConnection(H11Protocol):
    """The server's own timer runs between a request's end and the next byte; ours until a request's head is there."""

    def __init__(
        self, *args: Any, head_timeout_s: float, max_connections: int, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._head_timeout_s = head_timeout_s
        self._max_connections = max_connections
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            log.warning("connections are closed at once max=%d", self._max_connections)
            transport.abort()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self._head_timer is None:
            self._await_head()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel()

    def on_response_complete(self) -> None:
        self._cancel()
        super().on_response_complete()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._head_timeout_s, self._give_up)

    def _cancel(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Without a free file asyncio tells a traceback for each connection that may wait, tries again as many times a
    second later, and tells as many more where the listener was closed until then.
    """
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _NO_FILES and "socket" in context:
        log.error("no connection is taken for a moment why=%s", error.strerror)
    elif not (isinstance(error, ValueError) and "._start_serving(" in context["message"]):
        loop.default_exception_handler(context)
