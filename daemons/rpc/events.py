"""Events over PUB/SUB: [topic][u64 number][payload][u64 last number of the event of this topic before].

An event of several blocks has a number for each; the one it carries is the first. A reader of all topics sees from the
first number what it missed, a reader of one topic from the second.
"""

import logging
import struct
from collections.abc import Iterator
from typing import NamedTuple

import zmq

from daemons.core.errors import ConfigError
from daemons.protocol.address import split_key
from daemons.protocol.base import MALFORMED, Message
from daemons.protocol.event import Event, size_of
from daemons.protocol.messages import decode_event, encode
from daemons.rpc.authenticator import EVENTS, HandshakeWatch
from daemons.rpc.keys import KeyPair, use_keys
from daemons.rpc.loop import Loop

log = logging.getLogger(__name__)

MAX_TOPICS = 1024
_REOPEN_S = 0.05
_PATIENT_TRIES = 200
_LATER_S = 1.0
_SEQUENCE = struct.Struct("<Q")


class Publisher:
    """Never blocks and never waits for a reader: one that is too slow loses events and sees the gap."""

    def __init__(self, loop: Loop, bind: str) -> None:
        self.sequence = 0
        self._loop = loop
        self._last_by_type: dict[type[Message], int] = {}
        self._topics: set[bytes] = set()
        """What is subscribed to; while nothing is, an event costs only its number."""
        self._is_closed = False
        try:
            self._open(bind)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"cannot publish on {bind}: {zmq.strerror(error.errno or 0)}; "
                "choose another address under `node.events`"
            ) from None
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        if loop.identity is not None:
            loop.identity.allowed.on_revoked.append(self._cut)

    def publish(self, event: Message) -> int:
        """Its last number."""
        first, kind = self.sequence + 1, type(event)
        self.sequence += size_of(event)
        if self._topics:
            topic = kind.__name__.lower().encode()
            previous = self._last_by_type.get(kind, 0)
            numbers = _SEQUENCE.pack(first), _SEQUENCE.pack(previous)
            self._socket.send_multipart([topic, numbers[0], encode(event), numbers[1]])
        self._last_by_type[kind] = self.sequence
        return self.sequence

    def close(self) -> None:
        self._is_closed = True
        self._drop()

    def _open(self, bind: str) -> None:
        """Raises ZMQError; then there is no socket."""
        self._watch: HandshakeWatch | None = None
        self._socket = self._loop.context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 20_000)
        authenticator = self._loop.authenticator
        if authenticator is not None:
            authenticator.secure(self._socket, EVENTS)
            self._watch = HandshakeWatch(self._loop, self._socket, authenticator.refusals)
        self._loop.add_reader(self._socket, self._on_readable)
        try:
            self._socket.bind(bind)
        except zmq.ZMQError:
            self._drop()
            raise

    def _drop(self) -> None:
        self._topics.clear()
        self._loop.remove_reader(self._socket)
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._socket.close()

    def _cut(self) -> None:
        """A socket cannot drop one reader. All are dropped; who may, connects again at once and sees the gap."""
        if not self._is_closed:
            self._drop()
            self._reopen(0)

    def _reopen(self, num_tries: int) -> None:
        if self._is_closed:
            return
        try:
            self._open(self.endpoint)
        except zmq.ZMQError as error:
            # The library frees the address in its own time; beyond that another process has it.
            if num_tries == _PATIENT_TRIES:
                log.error("events are off at=%s why=%s", self.endpoint, error)  # noqa: TRY400 - no bug
            delay_s = _REOPEN_S if num_tries < _PATIENT_TRIES else _LATER_S
            self._loop.call_later(delay_s, self._reopen, num_tries + 1)

    def _on_readable(self) -> None:
        """[1][topic] when the first reader of a topic comes, [0][topic] when its last has left."""
        while True:
            try:
                message = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if message[:1] == b"\x01" and len(self._topics) < MAX_TOPICS:
                self._topics.add(message[1:])
            elif message[:1] == b"\x00":
                self._topics.discard(message[1:])


class Published(NamedTuple):
    """`event` is None for one that this release does not know; `sequence` is its first number."""

    sequence: int
    event: Event | None
    previous: int
    """Last number of the event of this topic before; 0 for none."""


class Subscriber:
    """A blocking reader for tools; `topics` are lower-case event names, empty for all.

    `pair` are the keys of whoever reads, needed where the endpoint has a key.
    """

    def __init__(
        self, endpoint: str, topics: tuple[str, ...] = (), pair: KeyPair | None = None
    ) -> None:
        address, server_key = split_key(endpoint)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        for topic in topics or ("",):
            self._socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        if server_key is not None and pair is not None:
            use_keys(self._socket, pair, server_key)
        self._socket.connect(address)

    def events(self, timeout_s: float) -> Iterator[Published]:
        """Until none came for `timeout_s`. What carries no number is passed over."""
        while self._socket.poll(int(timeout_s * 1000)):
            frames = self._socket.recv_multipart()
            try:
                (sequence,) = _SEQUENCE.unpack(frames[1])
                (previous,) = _SEQUENCE.unpack(frames[3])
                yield Published(sequence, event_or_none(frames[2]), previous)
            except (struct.error, IndexError):
                continue

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def event_or_none(payload: bytes) -> Event | None:
    try:
        return decode_event(payload)
    except MALFORMED:
        return None
