"""What the status page shows: the master is asked when somebody looks, once a second at most however many do.

Hits are sampled all the time, so that a page that is opened has a past to show. Coroutines' thread.
"""

import asyncio
from collections import deque
from typing import Final, TypeVar

from daemons.core.errors import McError, ProtocolError, Unavailable
from daemons.mc_gateway.bridge import Bridge
from daemons.mc_gateway.page_view import HitSample, Look
from daemons.protocol.base import Message
from daemons.protocol.cache import CacheStat, CacheStatReply
from daemons.protocol.messages import Reply
from daemons.protocol.node import ListNodes, ListNodesReply
from daemons.protocol.request_list import ListRequests, ListRequestsReply

SAMPLE_S: Final = 5.0
MAX_SAMPLES: Final = 240
"""20 minutes."""
FRESH_S: Final = 1.0
ASK_S: Final = 2.0
MAX_REQUESTS: Final = 40

ReplyType = TypeVar("ReplyType", bound=Message)


class Board:
    """`run_forever` samples; `look` is for whoever shows it."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._clock = bridge.cluster.loop.clock
        self._last: Look | None = None
        self._looking: asyncio.Task[Look] | None = None
        self._counted: CacheStatReply | None = None
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=MAX_SAMPLES)

    async def look(self) -> Look:
        """Raises McError. Those who come while one is under way share it."""
        if self._last is not None and self._clock() - self._last.taken_s < FRESH_S:
            return self._last
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())
        # Shielded: one reader that leaves does not take it from the others.
        return await asyncio.shield(self._looking)

    def hits(self) -> list[HitSample]:
        """The oldest first."""
        now_s = self._clock()
        return [
            HitSample(age_s=now_s - taken_s, num_lookups=lookups, num_hits=hits)
            for taken_s, lookups, hits in self._samples
        ]

    async def run_forever(self) -> None:
        while True:
            await self.run_once()
            await asyncio.sleep(SAMPLE_S)

    async def run_once(self) -> None:
        """One sample; none while the master is away."""
        try:
            now = await self._ask(CacheStat(), CacheStatReply)
        except McError:
            self._counted = None
            return
        before, self._counted = self._counted, now
        if before is not None:
            lookups = now.num_lookup_blocks - before.num_lookup_blocks
            hits = now.num_hit_blocks - before.num_hit_blocks
            if 0 <= hits <= lookups:  # else it is a master that has begun anew
                self._samples.append((self._clock(), lookups, hits))

    async def _look(self) -> Look:
        pool, nodes, requests = await asyncio.gather(
            self._ask(CacheStat(), CacheStatReply),
            self._ask(ListNodes(), ListNodesReply),
            self._ask(ListRequests(limit=MAX_REQUESTS), ListRequestsReply),
        )
        self._last = Look(self._clock(), pool, nodes, requests.requests[:MAX_REQUESTS])
        return self._last

    async def _ask(self, message: Message, expected: type[ReplyType]) -> ReplyType:
        answer: asyncio.Future[Reply | McError] = asyncio.get_running_loop().create_future()
        master = self._bridge.cluster.master

        def settle(reply: Reply | McError) -> None:
            if not answer.done():
                answer.set_result(reply)

        def on_reply(reply: Reply | McError) -> None:
            self._bridge.post(lambda: settle(reply))

        def send() -> None:
            try:
                master.request(message, timeout_s=ASK_S, on_reply=on_reply)
            except McError as error:
                on_reply(error)

        self._bridge.cluster.loop.call_soon_threadsafe(send)
        try:
            async with asyncio.timeout(2 * ASK_S):  # the rpc thread may have ended
                reply = await answer
        except TimeoutError:
            raise Unavailable("the master was not asked in time") from None
        if isinstance(reply, McError):
            raise reply
        if not isinstance(reply, expected):
            raise ProtocolError(f"the master answered with {type(reply).__name__}")
        return reply
