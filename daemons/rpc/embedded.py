"""A Loop that an asyncio loop turns, in its thread: no thread of its own, and none between a request and its reply.

A ZeroMQ socket's descriptor tells of news once. So the loop is turned until it has nothing to do, and once more after
every request, which may have taken the news with it.
"""

import asyncio
import math
from typing import Final

from daemons.rpc.loop import Loop

_MAX_TURNS: Final = 64
"""Before the asyncio loop's other work has its turn."""


class Embedded:
    """Made in the asyncio loop's thread, and used there alone. Give it a Loop without sockets."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.host = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_kicked = False
        self._fds: set[int] = set()
        loop.watcher = self
        self.watch(loop.wake_fd)

    def watch(self, fd: int) -> None:
        self._fds.add(fd)
        self.host.add_reader(fd, self._turn)

    def unwatch(self, fd: int) -> None:
        self._fds.discard(fd)
        self.host.remove_reader(fd)

    def kick(self) -> None:
        """After requests were made."""
        if not self._is_kicked:
            self._is_kicked = True
            self.host.call_soon(self._turn)

    def close(self) -> None:
        """Its channels must be closed before."""
        for fd in list(self._fds):
            self.unwatch(fd)
        self._fds.clear()
        self.loop.watcher = None
        if self._timer is not None:
            self._timer.cancel()
        self.loop.close()

    def _turn(self) -> None:
        self._is_kicked = False
        if not self._fds:
            return  # closed
        for _ in range(_MAX_TURNS):
            if not self.loop.turn_if_due():
                break
        else:
            self.kick()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.loop.next_due_s
        if due_s < math.inf:
            self._timer = self.host.call_later(due_s, self._turn)
