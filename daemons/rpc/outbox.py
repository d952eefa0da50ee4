"""What a server sends, in order. Answers to requests that were waiting together go in one pass: the library's own
thread wakes once for all of them, and sends together what fits together.
"""

from typing import Final

import zmq

from daemons.core.clock import Clock
from daemons.rpc.frames import send_frames

MAX_HELD: Final = 16
MAX_HELD_S: Final = 0.001
"""Nobody's answer waits longer for those of others, but for the one request that is being served."""

Frames = tuple[bytes, bytes, bytes]
"""[peer][header][payload]"""


class Outbox:
    """Of one ROUTER socket. Loop thread only."""

    def __init__(self, socket: "zmq.Socket[bytes]", clock: Clock) -> None:
        self.num_undeliverable = 0
        self.is_holding = False
        """More requests wait: answers to them may go together."""
        self._socket = socket
        self._clock = clock
        self._held: list[Frames] = []
        self._since_s = 0.0

    def send(self, frames: Frames) -> bool:
        """Now, after all that is held; False where the peer is gone."""
        if self._held:
            self.flush()
        return self._send(frames)

    def hold(self, frames: Frames) -> None:
        """With what follows soon; `flush` is called before anything else is waited for."""
        if not self._held:
            self._since_s = self._clock()
        self._held.append(frames)
        if len(self._held) >= MAX_HELD or self._clock() - self._since_s > MAX_HELD_S:
            self.flush()

    def flush(self) -> None:
        held, self._held = self._held, []
        for frames in held:
            self._send(frames)

    def _send(self, frames: Frames) -> bool:
        try:
            send_frames(self._socket, frames)
        except zmq.ZMQError:
            # EHOSTUNREACH: it left. EAGAIN: it has not read 20,000 messages; to us that is the same.
            self.num_undeliverable += 1
            return False
        return True
