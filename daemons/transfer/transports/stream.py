"""READ, WRITE and messages over stream sockets, UNIX or TCP: a bounded pool of connections to one life of one peer.

A failed READ closes its connection, so nothing of it can still arrive in the caller's memory. A failed WRITE is
fenced (fence.py).
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence

from daemons.core.errors import McError, ProtocolError, Unavailable
from daemons.protocol.segment import RegionRef
from daemons.transfer.credentials import Credential
from daemons.transfer.transports import exchange, sockets, wire
from daemons.transfer.transports.access import authenticate, give_name
from daemons.transfer.transports.base import (
    Batch,
    NotOver,
    NoTurn,
    ReadBatch,
    Unreachable,
    WriteBatch,
    describe,
)
from daemons.transfer.transports.exchange import Private, Refusal, Stream
from daemons.transfer.transports.fence import GRACE_S, HalfClosed
from daemons.transfer.transports.requests import (
    encode,
    encode_write,
    parts_of,
    read_part,
    write_part,
)
from daemons.transfer.transports.runs import Runs

Connect = Callable[[float], socket.socket]
"""Opens a connection within so many seconds; raises OSError."""

MAX_CONNECTIONS = 8
CONNECT_TIMEOUT_S = 2.0
_REMEMBER_DEAD_S = 0.2


class StreamPool:
    """At most MAX_CONNECTIONS; batches beyond wait for one until their deadline."""

    def __init__(
        self,
        connect: Connect,
        credential: Credential | None = None,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        has_names: bool = False,
    ) -> None:
        self.last_used_s = time.monotonic()
        self._connect = connect
        self._credential = credential
        self._connect_timeout_s = connect_timeout_s
        self._has_names = has_names
        self._idle: list[Stream] = []
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._num_open = 0
        self._num_waiting = 0
        self._dead_until_s = 0.0
        self._is_closed = False

    def read_quick(self, runs: Runs, deadline_s: float) -> bool:
        """A READ that was checked, over an idle connection; False: take the long way.

        A READ may be done twice, so whatever is not the plain answer is left to the long way to find out.
        """
        try:
            stream = self._idle.pop()
        except IndexError:
            return False
        if not exchange.read_quick(stream, runs, deadline_s):
            self._discard(stream)
            return False
        self._give_back(stream)
        return True

    def read(self, batch: ReadBatch) -> None:
        """All of a batch, in as many requests as its ranges need; on one connection."""
        if batch.on_read is None:
            stream, may_repeat = self._take(batch)
        else:  # what has reported is not asked for again
            stream, may_repeat = self._take_open(batch), False
        try:
            parts = parts_of(len(batch.reads))
            first = next(parts)
            try:
                read_part(stream, batch, first)
            except ConnectionError:
                if not may_repeat:
                    raise
                # The peer may have closed an idle connection; ask once more on a new one.
                stream.close()
                stream = self._open(batch)
                read_part(stream, batch, first)
            for part in parts:
                read_part(stream, batch, part)
        except Refusal as refusal:
            self._give_back(stream)
            raise refusal.error from None
        except OSError as error:
            self._discard(stream)
            raise Unavailable(f"{describe(batch.region.address)} is gone: {error}") from error
        except BaseException:
            self._discard(stream)
            raise
        self._give_back(stream)

    def write_quick(self, region: RegionRef, runs: Runs, timeout_s: float) -> bool:
        """A WRITE that was checked, over an idle connection; False: nothing was sent, take the long way."""
        try:
            stream = self._idle.pop()
        except IndexError:
            return False
        # A peer keeps a connection for a tick after its answer: within half of that it need not be asked.
        is_fresh = time.monotonic() - stream.last_answer_s < sockets.TICK_S / 2
        if not is_fresh and not sockets.is_open(stream.sock):
            self._discard(stream)
            return False
        left = exchange.write_quick(stream, runs)
        if left is None:
            self._give_back(stream)
            return True
        batch = WriteBatch(region, [], timeout_s)
        self._run_fenced(
            stream,
            batch,
            lambda stream: exchange.write_rest(stream, runs, left, batch),
        )
        return True

    def write(self, batch: WriteBatch) -> None:
        """On return the bytes are readable at the target."""

        def run(stream: Stream) -> None:
            for part in parts_of(len(batch.writes)):
                write_part(stream, batch, part)
                for index in part:
                    batch.finish(index)

        self._fenced(batch, run)

    def ask_to_pull(self, batch: WriteBatch, bodies: Sequence[bytes]) -> None:
        """WRITE by the target itself, one body for each MAX_RANGES writes; raises Private when it cannot."""

        def run(stream: Stream) -> None:
            for part, body in zip(parts_of(len(batch.writes)), bodies, strict=True):
                exchange.ask(stream, encode_write(wire.Op.PULL, batch, part, body), batch)
                for index in part:
                    batch.finish(index)

        self._fenced(batch, run)

    def notify(self, batch: ReadBatch | WriteBatch, message: bytes) -> None:
        request = encode(wire.Op.NOTIFY, batch.region, (), batch.capability, body=message)
        self._fenced(batch, lambda stream: exchange.ask(stream, request, batch))

    def fence(self, region: RegionRef, token: bytes, timeout_s: float) -> bool:
        """Have the peer end the connection of that name; whether nothing can land over it any more."""
        batch = WriteBatch(region, [], timeout_s)
        request = encode(wire.Op.FENCE, region, (), None, body=token)
        try:
            self._fenced(batch, lambda stream: exchange.ask(stream, request, batch))
        except McError:
            return False
        return True

    def drop_idle(self) -> None:
        """The path failed: what lies there may be dead without having noticed."""
        while True:
            try:
                self._discard(self._idle.pop())
            except IndexError:
                return

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for stream in idle:
            stream.close()

    def _fenced(self, batch: WriteBatch | ReadBatch, run: Callable[[Stream], object]) -> None:
        """Run what changes the peer. Whatever goes wrong, the path is closed or NotOver says that it is not."""
        self._run_fenced(self._take_open(batch), batch, run)

    def _run_fenced(
        self, stream: Stream, batch: WriteBatch | ReadBatch, run: Callable[[Stream], object]
    ) -> None:
        try:
            run(stream)
        except Refusal as refusal:
            self._give_back(stream)
            raise refusal.error from None
        except Private:
            self._give_back(stream)
            raise
        except (OSError, McError) as error:
            self._forget()
            why = error.message if isinstance(error, McError) else f"lost the peer: {error}"
            path = HalfClosed(stream.sock, stream.token)
            if not path.wait_closed(GRACE_S):
                raise NotOver(f"{why}; the target may still land it", path) from error
            if isinstance(error, McError):
                raise
            raise Unavailable(f"{describe(batch.region.address)} is gone: {error}") from error
        self._give_back(stream)

    def _take(self, batch: Batch) -> tuple[Stream, bool]:
        """An idle connection or a new one, and whether it was idle."""
        self.last_used_s = time.monotonic()
        with self._changed:
            while (stream := self._pop_idle()) is None and self._num_open >= MAX_CONNECTIONS:
                self._wait_turn(batch)
            if stream is not None:
                return stream, True
            self._num_open += 1
        try:
            return self._open(batch), False
        except BaseException:
            self._forget()
            raise

    def _pop_idle(self) -> Stream | None:
        """In one step: the short ways take one without the lock."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _wait_turn(self, batch: Batch) -> None:
        """A tick at most, under the lock. Raises NoTurn when the time is up."""
        self._num_waiting += 1
        try:
            self._changed.wait(min(batch.remaining_s(), sockets.TICK_S))
        except Unavailable as error:
            name = describe(batch.region.address)
            raise NoTurn(
                f"this process had all its {MAX_CONNECTIONS} connections to {name} in use for {batch.timeout_s:g} s"
            ) from error
        finally:
            self._num_waiting -= 1

    def _take_open(self, batch: Batch) -> Stream:
        """One that the peer has not closed meanwhile: for what is never repeated."""
        while True:
            stream, is_reused = self._take(batch)
            if not is_reused or sockets.is_open(stream.sock):
                return stream
            self._discard(stream)

    def _give_back(self, stream: Stream) -> None:
        self._idle.append(stream)
        if self._is_closed or self._num_waiting:
            with self._changed:
                self._changed.notify()
            if self._is_closed:
                self.close()

    def _discard(self, stream: Stream) -> None:
        stream.close()
        self._forget()

    def _forget(self) -> None:
        """One connection less."""
        with self._changed:
            self._num_open -= 1
            self._changed.notify()

    def _open(self, batch: Batch) -> Stream:
        name, epoch = describe(batch.region.address), batch.region.address.epoch
        patience_s = batch.patience_s()
        if time.monotonic() < self._dead_until_s:
            raise Unreachable(f"cannot connect to {name}: it refused a moment ago")
        try:
            sock = self._connect(min(patience_s, self._connect_timeout_s))
        except (ConnectionRefusedError, FileNotFoundError, TimeoutError) as error:
            self._dead_until_s = time.monotonic() + _REMEMBER_DEAD_S
            raise Unreachable(f"cannot connect to {name}: {error}") from error
        except (OSError, ValueError) as error:  # ValueError: a path or host that can be no address
            raise Unreachable(f"cannot connect to {name}: {error}") from error
        try:
            if self._credential is not None:
                authenticate(sock, epoch, self._credential)
            token = give_name(sock, epoch) if self._has_names else b""
            sockets.prepare(sock, send_timeout_s=sockets.TICK_S, receive_timeout_s=sockets.TICK_S)
        except (OSError, ProtocolError) as error:
            sock.close()
            raise Unreachable(f"{name} does not let us in: {error}") from error
        return Stream(sock, token)
