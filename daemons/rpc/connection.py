"""The connection below a channel: made when it is needed, lost for a reason, and then made anew with another socket.

What waits for a handshake is sent once it succeeded; what is lost with a connection is lost. Loop thread only.
"""

from collections import deque
from typing import Final, Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from daemons.core.errors import McError, Unavailable
from daemons.protocol.address import split_key
from daemons.protocol.failure import Unwelcome
from daemons.rpc.dealer import GET_KEYS, MONITORED, NO_KEYS, keys_missing, new_dealer
from daemons.rpc.frames import has_more, receive, send_frames
from daemons.rpc.loop import Loop, Timer

AT_ONCE_S: Final = 0.02
"""So long an answer is awaited without the loop's help; beats are too rare to miss it."""


class Listener(Protocol):
    """Who uses the connection."""

    def on_connected(self) -> None:
        """What is sent now goes before all that waited."""

    def on_frames(self, frames: list[bytes]) -> None:
        """A whole message; another may follow before the loop does anything else."""

    def on_lost(self, error: McError) -> None:
        """At once."""

    def on_lost_soon(self, error: McError) -> None:
        """Found in the middle of a `send`: whoever asked must not hear of it before that returns."""


class Connection:
    """`endpoint` is without the server's key; `socket` is None while there is no attempt.

    An attempt that is refused, as where the process is dead, is a loss at once: whoever asked goes elsewhere. Who is
    patient has nowhere to go, and tries again until `connect_timeout_s` is over: the peer may be about to start.
    """

    def __init__(
        self,
        loop: Loop,
        endpoint: str,
        listener: Listener,
        connect_timeout_s: float,
        *,
        is_patient: bool = False,
    ) -> None:
        self.endpoint, self._server_key = split_key(endpoint)
        self.is_up = False
        self.socket: zmq.Socket[bytes] | None = None
        self._loop = loop
        self._listener = listener
        self._connect_timeout_s = connect_timeout_s
        self._is_patient = is_patient
        self._outbox: deque[list[bytes]] = deque()
        self._monitor: zmq.Socket[bytes] | None = None
        self._connect_timer: Timer | None = None
        self._unproved_why = ""
        """Why the last handshake may have failed, where the library did not say."""

    @property
    def is_revoked(self) -> bool:
        """Whether the server's key is known to be good no more."""
        identity = self._loop.identity
        if identity is None or self._server_key is None:
            return False
        return identity.allowed.revoked(self._server_key) is not None

    def open(self) -> None:
        """Fine when it is open, or about to be."""
        if self.socket is not None:
            return
        identity = self._loop.identity
        why_not = keys_missing(self.endpoint, identity, self._server_key)
        if why_not:
            self._lose_soon(Unwelcome(why_not))
            return
        try:
            self.socket = new_dealer(self._loop.context, identity, self._server_key)
            self._begin(self.socket)
        except zmq.ZMQError as error:  # there may be too many open files
            why = zmq.strerror(error.errno or 0)
            self._lose_soon(Unavailable(f"cannot connect to {self.endpoint}: {why}"))
            return
        self._connect_timer = self._loop.call_later(
            self._connect_timeout_s, self._on_connect_timeout
        )

    def _begin(self, socket: "zmq.Socket[bytes]") -> None:
        """Raises ZMQError."""
        socket.setsockopt(zmq.RCVTIMEO, round(AT_ONCE_S * 1000))
        self._monitor = socket.get_monitor_socket(MONITORED)
        self._loop.add_reader(self._monitor, self._on_monitor)
        self._loop.add_reader(socket, self._on_readable)
        socket.connect(self.endpoint)

    def send(self, frames: list[bytes]) -> None:
        """At once, or after the handshake; lost where no connection is being made."""
        if not self.is_up:
            if self.socket is not None:
                self._outbox.append(frames)
            return
        assert self.socket is not None, "connected without a socket"
        try:
            send_frames(self.socket, frames)
        except zmq.Again:
            self._lose_soon(Unavailable(f"{self.endpoint} is gone, or has stopped reading"))

    def await_frames(self) -> list[bytes] | None:
        """The next message, whoever it is for. None: none came within AT_ONCE_S, in which nothing else is heard."""
        if self.socket is None:
            return None
        try:
            return [part.bytes for part in receive(self.socket, 0)]
        except zmq.Again:
            return None

    def lose(self, error: McError) -> None:
        """End it because of this."""
        self.drop()
        self._listener.on_lost(error)

    def drop(self) -> None:
        """End it, and tell nobody."""
        self.is_up = False
        self._outbox.clear()
        if self._connect_timer is not None:
            self._connect_timer.cancel()
        socket, monitor = self.socket, self._monitor
        self.socket = self._monitor = None
        if socket is not None and monitor is None:  # there was no room for it
            socket.close(0)
        elif socket is not None and monitor is not None:
            self._loop.remove_reader(monitor)
            self._loop.remove_reader(socket)
            # In this order: the library says goodbye on the monitor, and waits for ever on one that is closed.
            socket.disable_monitor()
            monitor.close(0)
            socket.close()

    def _lose_soon(self, error: McError) -> None:
        self.drop()
        self._listener.on_lost_soon(error)

    def _on_monitor(self) -> None:
        monitor = self._monitor
        while monitor is not None and self._monitor is monitor:
            try:
                event = recv_monitor_message(monitor, zmq.NOBLOCK)["event"]
            except zmq.Again:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._on_up()
            elif event == zmq.EVENT_CONNECT_RETRIED:
                self._on_refused()
            elif event == zmq.EVENT_DISCONNECTED:
                self._loop.guard(self._on_readable)  # what it said before it left still counts
                if self._monitor is not monitor:
                    return  # it said nonsense: that loss was dealt with, this is a new socket
                self.lose(Unavailable(f"{self.endpoint} closed the connection{self._unproved_why}"))
            else:
                self._on_handshake_failed(event)

    def _on_handshake_failed(self, event: int) -> None:
        """The library gives up after the two that say something; the third may also be a server that ends."""
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.lose(
                Unwelcome(
                    f"{self.endpoint} does not let this process's key in: mcctl keys authorize at the master does"
                )
            )
        elif self._server_key is not None:
            self._unproved_why = (
                "; is this its public key, as `mcctl keys list` shows it at the master, "
                "and does it have keys?"
            )
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self.lose(Unwelcome(f"{self.endpoint} {NO_KEYS}"))
        else:
            self._unproved_why = (
                f" before a word was said; it may have ended, or ask for keys: {GET_KEYS}"
            )

    def _on_up(self) -> None:
        self.is_up = True
        self._unproved_why = ""
        if self._connect_timer is not None:
            self._connect_timer.cancel()
        waiting, self._outbox = self._outbox, deque()
        self._listener.on_connected()
        while waiting and self.is_up:
            self.send(waiting.popleft())

    def _on_refused(self) -> None:
        """The library is about to try again. After a loss it does so too, but then this monitor is closed."""
        if not self._is_patient:
            self._on_connect_timeout()

    def _on_connect_timeout(self) -> None:
        if not self.is_up:
            self.lose(
                Unavailable(f"{self.endpoint} does not answer; is it running?{self._unproved_why}")
            )

    def _on_readable(self) -> None:
        while self.socket is not None and has_more(self.socket):
            try:
                frames = [part.bytes for part in receive(self.socket)]
            except zmq.Again:
                return
            if self.is_revoked:
                self.lose(Unwelcome(f"the key of {self.endpoint} was revoked"))
                return
            self._listener.on_frames(frames)
