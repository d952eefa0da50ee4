"""Between the two threads of a gateway: rpc callbacks in one, coroutines in the other.

Each way is a queue and a wake-up. What waits for a slow HTTP reader is at most its own request's max_tokens integers;
nothing ever waits in the rpc thread.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from daemons.client.generate import (
    Cluster,
    Generation,
    GenerationEnd,
    GenerationRequest,
    Listener,
)


class TokenStream:
    """The coroutines' end of one generation. `ready` is set whenever `take` has something new."""

    def __init__(self, ready: asyncio.Event) -> None:
        self.end: GenerationEnd | None = None
        self._ready = ready
        self._tokens: list[int] = []
        self._on_stop: Callable[[], object] = _nothing
        self._on_cancel: Callable[[], object] = _nothing

    def take(self) -> list[int]:
        """Tokens that came since the last call; look at `end` after it, not before."""
        tokens, self._tokens = self._tokens, []
        return tokens

    def stop(self) -> None:
        """Ask for the end; it still comes, with the node's account."""
        self._on_stop()

    def cancel(self) -> None:
        """Free everything; nothing comes any more. Fine for one that has ended."""
        if self.end is None:
            self._on_cancel()

    def attach(self, on_stop: Callable[[], object], on_cancel: Callable[[], object]) -> None:
        self._on_stop, self._on_cancel = on_stop, on_cancel

    def feed(self, tokens: list[int]) -> None:
        self._tokens.extend(tokens)
        self._ready.set()

    def close(self, end: GenerationEnd) -> None:
        self.end = end
        self._ready.set()


class Bridge:
    """Made in the coroutines' thread, with both loops running."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._coroutines = asyncio.get_running_loop()
        self._inbox: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def post(self, callback: Callable[[], object]) -> None:
        """From the rpc thread: run this among the coroutines. One wake-up serves all that came meanwhile."""
        self._inbox.append(callback)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the coroutines' loop has ended: nobody waits
                self._coroutines.call_soon_threadsafe(self._drain)

    def start(
        self, request: GenerationRequest, deadline_s: float, ready: asyncio.Event
    ) -> TokenStream:
        stream = TokenStream(ready)
        listener = Listener(
            on_tokens=lambda tokens: self.post(lambda: stream.feed(tokens)),
            on_end=lambda end: self.post(lambda: stream.close(end)),
        )
        generation = Generation(self.cluster, request, listener, deadline_s)
        send = self.cluster.loop.call_soon_threadsafe
        stream.attach(lambda: send(generation.stop), lambda: send(generation.cancel))
        send(generation.start)
        return stream

    def _drain(self) -> None:
        # Cleared first: whatever is appended from here on wakes again.
        self._is_woken = False
        while self._inbox:
            self._inbox.popleft()()


def _nothing() -> None:
    return
