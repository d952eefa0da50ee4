"""Carries out the steps of calls on the store in asyncio: requests share connections, work goes to a few threads.

A call that is cancelled hears of it as an error where it stands, and what it still has to do (giving memory and names
back) goes on behind it for a moment.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from daemons.client.channel_pool import ChannelPool
from daemons.client.objects.sessions import Sessions
from daemons.client.objects.steps import AskMaster, AskNodes, Pause, Result, Step, Steps, Work
from daemons.core.errors import McError, Rejected
from daemons.protocol.base import Message
from daemons.protocol.messages import Reply
from daemons.protocol.node import HelloReply
from daemons.rpc import Channel, Embedded, Loop

_CONNECT_TIMEOUT_S: Final = 2.0
_CLOSE_S: Final = 2.0
"""For what cancelled calls have left behind."""


class AsyncSessions:
    """One asyncio loop's, in its thread. `shared` knows the master and the highest incarnation that was met."""

    def __init__(self, shared: Sessions, num_workers: int) -> None:
        self._shared = shared
        self._embedded = Embedded(Loop(identity=shared.identity))
        loop = self._embedded.loop
        self._is_old_master = False
        self._master = Channel(
            loop, shared.endpoint, on_hello=self._on_hello, connect_timeout_s=_CONNECT_TIMEOUT_S
        )
        self._nodes = ChannelPool(loop)
        self._workers = ThreadPoolExecutor(num_workers, thread_name_prefix="mc-store-work")
        self._turns = asyncio.Semaphore(num_workers)
        """Work waits here, where it can be cancelled, and not in the threads' queue."""
        self._working: set[asyncio.Future[object]] = set()
        self._behind: set[asyncio.Task[None]] = set()

    async def run(self, steps: Steps[Result]) -> Result:
        try:
            step = next(steps)
            while True:
                try:
                    outcome = await self._do(step)
                except asyncio.CancelledError:
                    self._leave(steps)
                    raise
                except Exception as error:  # noqa: BLE001  # thrown in, and out again by the steps
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            result: Result = end.value
            return result

    async def close(self) -> None:
        """Work that nobody waits for any more ends within the time it was given."""
        if self._behind:
            await asyncio.wait(self._behind, timeout=_CLOSE_S)
        if self._working:
            await asyncio.wait(self._working)
        for task in self._behind:
            task.cancel()
        self._master.close()
        self._nodes.close()
        self._embedded.close()
        self._workers.shutdown()

    def _leave(self, steps: Steps[Result]) -> None:
        """The steps give memory back before this returns; what they ask then is asked without their caller."""
        step = _throw_cancelled(steps)
        if step is not None:
            task = self._embedded.host.create_task(self._finish(steps, step))
            self._behind.add(task)
            task.add_done_callback(self._behind.discard)

    async def _finish(self, steps: Steps[Result], step: Step | None) -> None:
        """Only questions: nobody waits for anything else any more."""
        while step is not None:
            if isinstance(step, AskMaster | AskNodes):
                try:
                    step = steps.send(await self._do(step))
                except (StopIteration, McError):
                    return
            else:
                step = _throw_cancelled(steps)

    async def _do(self, step: Step) -> object:
        match step:
            case AskMaster():
                asked_master = [(self._master, step.message)]
                [reply] = await self._ask(asked_master, step.timeout_s, step.meanwhile)
                return self._shared.old_master() if self._is_old_master else reply
            case AskNodes():
                asked = [(self._nodes.get(to), message) for to, message in step.asked]
                return await self._ask(asked, step.timeout_s)
            case Pause():
                await asyncio.sleep(step.seconds)
                return None
            case Work():
                return await self._work(step)

    async def _work(self, step: Work) -> object:
        await self._turns.acquire()
        done = self._embedded.host.run_in_executor(self._workers, step.call)
        self._working.add(done)
        done.add_done_callback(self._end_work)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            while step.writes_to_caller and not done.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([done])
            raise

    def _end_work(self, done: "asyncio.Future[object]") -> None:
        self._working.discard(done)
        self._turns.release()

    async def _ask(
        self,
        asked: Sequence[tuple[Channel, Message]],
        timeout_s: float,
        meanwhile: Callable[[], object] | None = None,
    ) -> list[Reply | McError]:
        replies: list[Reply | McError | None] = [None] * len(asked)
        left = len(asked)
        done = self._embedded.host.create_future()

        def on_reply(index: int, reply: Reply | McError) -> None:
            nonlocal left
            replies[index] = reply
            left -= 1
            if not left and not done.done():
                done.set_result(None)

        pending = []
        try:
            for index, (channel, message) in enumerate(asked):
                try:
                    pending.append(
                        channel.request(
                            message,
                            timeout_s=timeout_s,
                            on_reply=lambda reply, index=index: on_reply(index, reply),  # type: ignore[misc]
                        )
                    )
                except McError as error:
                    on_reply(index, error)
            self._embedded.kick()
            if meanwhile is not None:
                meanwhile()
            await done
        finally:
            for each in pending:
                each.cancel()
        return [reply for reply in replies if reply is not None]

    def _on_hello(self, reply: HelloReply) -> None:
        shared = self._shared
        self._is_old_master = reply.incarnation < shared.incarnation
        shared.incarnation = max(shared.incarnation, reply.incarnation)
        self._master.incarnation = shared.incarnation


def _throw_cancelled(steps: Steps[Result]) -> Step | None:
    """What they still want to do then. Rejected, for what is Unavailable they try again."""
    try:
        return steps.throw(Rejected("the call was cancelled"))
    except (StopIteration, McError):
        return None
