"""Events over PUB/SUB: [topic][u64 sequence][payload]. A reader sees from the sequence what it missed."""

import struct
from collections.abc import Iterator

import zmq

from daemons.core.errors import ConfigError
from daemons.protocol.base import MALFORMED, Message
from daemons.protocol.messages import Event, decode_event, encode
from daemons.rpc.loop import Loop

MAX_TOPICS = 1024
_SEQUENCE = struct.Struct("<Q")


class Publisher:
    """Never blocks and never waits for a reader: one that is too slow loses events and sees the gap."""

    def __init__(self, loop: Loop, bind: str) -> None:
        self.sequence = 0
        self._loop = loop
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

    def publish(self, event: Message) -> None:
        self.sequence += 1
        if not self._topics:
            return
        topic = type(event).__name__.lower().encode()
        self._socket.send_multipart([topic, _SEQUENCE.pack(self.sequence), encode(event)])

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


class Subscriber:
    """A blocking reader for tools; `topics` are lower-case event names, empty for all."""

    def __init__(self, endpoint: str, topics: tuple[str, ...] = ()) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        for topic in topics or ("",):
            self._socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._socket.connect(endpoint)

    def events(self, timeout_s: float) -> Iterator[tuple[int, Event]]:
        """(sequence, event) until none came for `timeout_s`. Malformed ones are passed over."""
        while self._socket.poll(int(timeout_s * 1000)):
            frames = self._socket.recv_multipart()
            try:
                yield _SEQUENCE.unpack(frames[1])[0], decode_event(frames[2])
            except (struct.error, IndexError, *MALFORMED):
                continue

    def close(self) -> None:
        self._socket.close()
        self._context.term()
