"""One thread's event loop over ZeroMQ sockets and timers; handlers are synchronous.

Only `call_soon_threadsafe` and `stop` may be called from other threads. Callbacks must not block: the loop also
answers the pings by which peers know that this process lives.
"""

import contextlib
import heapq
import itertools
import logging
import math
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

import zmq

from daemons.core.clock import Clock, monotonic
from daemons.rpc.authenticator import Authenticator
from daemons.rpc.keys import Identity

log = logging.getLogger(__name__)

_MAX_WAIT_S = 0.5
"""The loop looks at its clock at least this often; a longer gap means the process was stopped or starved."""

_STALL_S = 2 * _MAX_WAIT_S
_MAX_CANCELLED = 64
_JUST_NOW_S = 0.001


class Timer:
    """A scheduled callback; `cancel` is idempotent."""

    __slots__ = ("_on_cancelled", "callback", "when_s")

    def __init__(
        self, when_s: float, callback: Callable[[], object], on_cancelled: Callable[[], object]
    ) -> None:
        self.when_s = when_s
        self.callback: Callable[[], object] | None = callback
        self._on_cancelled = on_cancelled

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._on_cancelled()


class Watcher(Protocol):
    """Hears which file descriptors tell that a loop is to be turned; each while its socket is open."""

    def watch(self, fd: int) -> None: ...

    def unwatch(self, fd: int) -> None: ...


class Loop:
    """Poll, run what became ready, run due timers, repeat."""

    def __init__(self, clock: Clock = monotonic, identity: Identity | None = None) -> None:
        self.clock = clock
        self.identity = identity
        """Of all servers and channels of this loop; None: they have no keys."""
        self.context = zmq.Context()
        self.stall_s = 0.0
        """How long the loop did not run before this turn; 0 when it kept time."""
        self.on_stall: Callable[[float], object] = lambda _stall_s: None
        """Called in such a turn, before anything else runs, with how long that was; and before a timer runs, with how
        long the callbacks before it took, where that was as long: this process may have been stopped in one."""
        self.turn = 0
        self.watcher: Watcher | None = None
        """Of a loop that another one turns."""
        self.num_errors = 0
        """Handler bugs that were caught; each was logged with its traceback."""
        self._poller = zmq.Poller()
        self._readers: dict[zmq.Socket[bytes] | int, Callable[[], object]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._num_cancelled = 0
        """Of the timers, which stay among them until they are due or too many."""
        self._counter = itertools.count()
        self._posted: deque[Callable[[], object]] = deque()
        self._stopped = False
        self._last_turn_s = self._turn_began_s = clock()
        self._last_took_s = 0.0
        """The turn before this one, where that was as long as a stall: it may have been one, in the middle."""
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._event_fd, zmq.POLLIN)
        self._sockets: set[zmq.Socket[bytes]] = set()
        """Of the readers; known apart, for whoever frees them when nobody closed this."""
        self._abandoned = weakref.finalize(
            self, _free, self.context, self._sockets, self._event_fd, os.getpid()
        )
        self._abandoned.atexit = False
        self.authenticator = Authenticator(self, identity) if identity is not None else None

    def add_reader(
        self, socket: "zmq.Socket[bytes] | int", on_readable: Callable[[], object]
    ) -> None:
        self._readers[socket] = on_readable
        if not isinstance(socket, int):
            self._sockets.add(socket)
        self._poller.register(socket, zmq.POLLIN)
        if self.watcher is not None:
            self.watcher.watch(_fd_of(socket))

    def remove_reader(self, socket: "zmq.Socket[bytes] | int") -> None:
        if self._readers.pop(socket, None) is not None:
            self._poller.unregister(socket)
            if not isinstance(socket, int):
                self._sockets.discard(socket)
            if self.watcher is not None:
                self.watcher.unwatch(_fd_of(socket))

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        """Run in the loop's thread, in the order posted. Whoever posts bounds how much it posts."""
        self._posted.append(lambda: callback(*args))
        self._wake()

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> Timer:
        timer = Timer(self.clock() + delay_s, lambda: callback(*args), self._on_cancelled)
        heapq.heappush(self._timers, (timer.when_s, next(self._counter), timer))
        return timer

    def every(self, interval_s: float, callback: Callable[[], object]) -> Timer:
        """Repeats until cancelled. After a stall it fires once, not once per missed interval."""
        holder = Timer(0.0, callback, lambda: None)

        def fire() -> None:
            if holder.callback is not None:
                self.call_later(interval_s, fire)
                holder.callback()

        self.call_later(interval_s, fire)
        return holder

    def run(self) -> None:
        while not self._stopped:
            self.run_once(_MAX_WAIT_S)

    def run_until(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Turn until `is_done()`; False when the time ran out first."""
        deadline_s = self.clock() + timeout_s
        while not is_done():
            left_s = deadline_s - self.clock()
            if left_s <= 0 or self._stopped:
                return is_done()
            self.run_once(min(left_s, _MAX_WAIT_S))
        return True

    def run_once(self, max_wait_s: float) -> None:
        """One turn: wait at most `max_wait_s` for a socket, a post or a timer."""
        wait_s = 0.0 if self._posted else max_wait_s
        if self._timers:
            wait_s = min(wait_s, max(0.0, self._timers[0][0] - self.clock()))
        ready = self._poller.poll(math.ceil(wait_s * 1000))
        now_s = self.clock()
        gap_s = now_s - self._last_turn_s
        self.stall_s = gap_s if gap_s > _STALL_S else 0.0
        self._tell_stall(gap_s)
        took_s = self._last_turn_s - self._turn_began_s
        self._last_took_s = took_s if took_s > _STALL_S else 0.0
        self._turn_began_s = now_s
        self.turn += 1
        for socket, _ in ready:
            if socket == self._event_fd:
                self._drain_event_fd()
            else:
                reader = self._readers.get(socket)
                if reader is not None:
                    self.guard(reader)
        for _ in range(len(self._posted)):
            self.guard(self._posted.popleft())
        self._tell_stall(self.clock() - now_s)
        self._run_timers()
        self._last_turn_s = self.clock()

    @property
    def stalled_s(self) -> float:
        """So long what is heard now may have waited while this process did not run: before this turn, in it, or in the
        last one. 0 where it kept time.
        """
        in_turn_s = self.clock() - self._turn_began_s
        return max(self.stall_s, self._last_took_s, in_turn_s if in_turn_s > _STALL_S else 0.0)

    @property
    def next_due_s(self) -> float:
        """Until its next timer; infinite without one."""
        return max(0.0, self._timers[0][0] - self.clock()) if self._timers else math.inf

    @property
    def wake_fd(self) -> int:
        """Readable when something was posted."""
        return self._event_fd

    def turn_if_due(self) -> bool:
        """`run_once` without waiting; False where it would do nothing."""
        has_due = bool(self._timers) and self._timers[0][0] <= self.clock()
        is_due = has_due or bool(self._posted) or bool(self._poller.poll(0))
        if is_due:
            self.run_once(0.0)
        else:
            self._last_turn_s = self.clock()
        return is_due

    def catch_up(self) -> None:
        """`turn_if_due`, where the last look at the sockets is not of just now."""
        if self.clock() - self._last_turn_s > _JUST_NOW_S:
            self.turn_if_due()

    def stop(self) -> None:
        """Thread-safe; the turn in progress is finished."""
        self._stopped = True
        self._wake()

    def close(self) -> None:
        """Free the sockets' context. Every server and channel must be closed before."""
        if self._event_fd >= 0:
            self._abandoned.detach()
            self._poller.unregister(self._event_fd)
            os.close(self._event_fd)
            self._event_fd = -1
            self.context.destroy(linger=0)

    def guard(self, callback: Callable[[], object]) -> None:
        """Run it; a bug in it is logged and counted, and must not end the others' work."""
        try:
            callback()
        except Exception:
            self.num_errors += 1
            log.exception("handler failed")

    def _wake(self) -> None:
        """A worker that ends, or a signal that comes, after `close` is heard by nobody."""
        if self._event_fd >= 0:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._event_fd, 1)

    def _drain_event_fd(self) -> None:
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            return

    def _run_timers(self) -> None:
        now_s = self.clock()
        while self._timers and self._timers[0][0] <= now_s:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is None:
                self._num_cancelled -= 1
            else:
                callback, timer.callback = timer.callback, None
                begun_s = self.clock()
                self.guard(callback)
                self._tell_stall(self.clock() - begun_s)

    def _tell_stall(self, stall_s: float) -> None:
        if stall_s > _STALL_S:
            self.guard(lambda: self.on_stall(stall_s))

    def _on_cancelled(self) -> None:
        """Most timers are of requests that were answered: without this they would stay for their whole timeout."""
        self._num_cancelled += 1
        if self._num_cancelled > _MAX_CANCELLED and 2 * self._num_cancelled > len(self._timers):
            self._timers = [each for each in self._timers if each[2].callback is not None]
            heapq.heapify(self._timers)
            self._num_cancelled = 0


def _fd_of(socket: "zmq.Socket[bytes] | int") -> int:
    return socket if isinstance(socket, int) else int(socket.getsockopt(zmq.FD))


def _free(
    context: "zmq.Context[zmq.Socket[bytes]]",
    sockets: "set[zmq.Socket[bytes]]",
    event_fd: int,
    owner_pid: int,
) -> None:
    """Of a loop that was dropped without `close`, as the collector meets it. The context alone would wait for ever: by
    then it does not know its sockets any more.
    """
    if os.getpid() != owner_pid:
        return
    os.close(event_fd)
    monitors = {socket for socket in sockets if socket.type == zmq.PAIR}
    for socket in sockets - monitors:
        socket.disable_monitor()  # before its monitor is closed: it says goodbye there, and waits
    for socket in sockets:
        socket.close(0)
    context.destroy(linger=0)
