"""One HTTP connection: closed when a request does not come whole in time, so that idle ones cannot pile up, and at
once where it is one too many, of all or of its address: what the gateway itself must open still finds room, and so do
other clients.
"""

import asyncio
import errno
import logging
from collections import Counter
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

_NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Room:
    """For the connections of one server: of all, and of one address, which gets half of it at most."""

    total: int
    of_address: int
    num_by_address: Counter[str] = field(default_factory=Counter)

    def enter(self, address: str, num_open: int) -> bool:
        """Whether there is room; `leave` gives it back. `num_open`: of all, with this one."""
        if num_open > self.total:
            log.warning("connections are closed at once max=%d", self.total)
            return False
        most = min(self.of_address, max(1, self.total // 2))
        if self.num_by_address[address] >= most:
            log.warning("connections are closed at once address=%s max=%d", address, most)
            return False
        self.num_by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        self.num_by_address[address] -= 1
        if not self.num_by_address[address]:
            del self.num_by_address[address]


def counted_address(host: str) -> str:
    """What counts as one address: of IPv6 the network, all of which a single host may have."""
    if ":" not in host:
        return host
    network = int(IPv6Address(host.partition("%")[0])) >> 64 << 64
    return f"{IPv6Address(network)}/64"


class HttpConnection(H11Protocol):
    """The server's own timer runs between a request's end and the next byte; ours until a request's head is there."""

    def __init__(self, *args: Any, head_timeout_s: float, room: Room, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head_timeout_s = head_timeout_s
        self._room = room
        self._address: str | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = counted_address(self.client[0] if self.client else "")
        if not self._room.enter(address, len(self.connections)):
            transport.abort()
            return
        self._address = address
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        if self._address is not None:
            self._room.leave(self._address)
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
