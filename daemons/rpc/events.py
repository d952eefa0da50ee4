"""Events over PUB/SUB: [topic][u64 sequence][payload][u64 sequence of the event of this topic before].

A reader of all topics sees from the first number what it missed, a reader of one topic from the second.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import zmq

from daemons.core.errors import ConfigError
from daemons.protocol.base import MALFORMED, Message
from daemons.protocol.event import Event
from daemons.protocol.messages import decode_event, encode
from daemons.rpc.loop import Loop

MAX_TOPICS = 1024
_SEQUENCE = struct.Struct("<Q")


class Publisher:
    """Never blocks and never waits for a reader: one that is too slow loses events and sees the gap."""

    def __init__(self, loop: Loop, bind: str) -> None:
        self.sequence = 0
        self._loop = loop
        self._last_by_type: dict[type[Message], int] = {}
        self._topics: set[bytes] = set()
        """What is subscribed to; while nothing is, an event costs only its number."""
        self._socket = loop.context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 20_000)
        try:
            self._socket.bind(bind)
        except zmq.ZMQError as error:
            self._socket.close(0)
            raise ConfigError(
                f"cannot publish on {bind}: {zmq.strerror(error.errno or 0)}; choose another address under `events`"
            ) from None
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        loop.add_reader(self._socket, self._on_readable)

    def publish(self, event: Message) -> int:
        """Its number."""
        self.sequence += 1
        previous = self._last_by_type.get(type(event), 0)
        self._last_by_type[type(event)] = self.sequence
        if self._topics:
            topic = type(event).__name__.lower().encode()
            numbers = _SEQUENCE.pack(self.sequence), _SEQUENCE.pack(previous)
            self._socket.send_multipart([topic, numbers[0], encode(event), numbers[1]])
        return self.sequence

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()

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
    """`event` is None for one that this release does not know."""

    sequence: int
    event: Event | None
    previous: int
    """Number of the event of this topic before; 0 for none."""


class Subscriber:
    """A blocking reader for tools; `topics` are lower-case event names, empty for all."""

    def __init__(self, endpoint: str, topics: tuple[str, ...] = ()) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        for topic in topics or ("",):
            self._socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._socket.connect(endpoint)

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
