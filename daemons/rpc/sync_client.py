"""A channel for tools: one request at a time, on a private loop that turns while it waits."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from daemons.core.errors import McError
from daemons.protocol.base import Message
from daemons.protocol.messages import Part, Reply
from daemons.rpc.client import Channel
from daemons.rpc.keys import Identity
from daemons.rpc.loop import Loop

_CONNECT_TIMEOUT_S = 2.0
"""A tool has nowhere else to go: it gives a busy host more time than daemons give each other."""


@dataclass(slots=True)
class _Outcome:
    replies: list[Reply | McError] = field(default_factory=list)
    parts: deque[Part] = field(default_factory=deque)


class SyncClient:
    """Use it in one thread, and `close` it."""

    def __init__(
        self, endpoint: str, timeout_s: float = 5.0, identity: Identity | None = None
    ) -> None:
        self.timeout_s = timeout_s
        self.loop = Loop(identity=identity)
        self.channel = Channel(self.loop, endpoint, connect_timeout_s=_CONNECT_TIMEOUT_S)

    def request(self, message: Message, timeout_s: float | None = None) -> Reply:
        """The reply; raises the family of McError the server answered with, or Unavailable."""
        *_, reply = self.stream(message, timeout_s)
        return reply  # type: ignore[return-value]  # the last item is the reply

    def stream(self, message: Message, timeout_s: float | None = None) -> Iterator[Part | Reply]:
        """Parts as they come, then the reply. Leaving early forgets the request."""
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        got = _Outcome()
        self.loop.run_once(0.0)  # hear now of a loss that happened while nobody turned the loop
        pending = self.channel.request(
            message, timeout_s=wait_s, on_reply=got.replies.append, on_part=got.parts.append
        )
        try:
            while True:
                self.loop.run_until(lambda: bool(got.replies or got.parts), wait_s + 1)
                while got.parts:
                    yield got.parts.popleft()
                if got.replies:
                    break
        finally:
            pending.cancel()
        outcome = got.replies[0]
        if isinstance(outcome, McError):
            raise outcome
        yield outcome

    def close(self) -> None:
        self.channel.close()
        self.loop.close()

    def __enter__(self) -> "SyncClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
