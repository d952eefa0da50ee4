"""Events over PUB/SUB: [topic][u64 sequence][payload]. A reader sees from the sequence what it missed."""

import struct
from collections.abc import Iterator

import msgspec
import zmq

from daemons.core.errors import ConfigError
from daemons.protocol.base import Message
from daemons.protocol.messages import Event, decode_event, encode
from daemons.rpc.loop import Loop

_SEQUENCE = struct.Struct("<Q")


class Publisher:
    """Never blocks and never waits for a reader: one that is too slow loses events and sees the gap."""

    def __init__(self, loop: Loop, bind: str) -> None:
        self.sequence = 0
        self._socket = loop.context.socket(zmq.PUB)
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

    def publish(self, event: Message) -> None:
        self.sequence += 1
        topic = type(event).__name__.lower().encode()
        self._socket.send_multipart([topic, _SEQUENCE.pack(self.sequence), encode(event)])

    def close(self) -> None:
        self._socket.close()


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
            except (msgspec.MsgspecError, struct.error, IndexError):
                continue

    def close(self) -> None:
        self._socket.close()
        self._context.term()
