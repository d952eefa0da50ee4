"""The end of a WRITE that was given up: it is over when the target has closed its side of the connection too.

A clock cannot tell: a target that was stopped lands what lies in its socket when it goes on. So we say that nothing
more will come, which makes the target drop what has not landed, and wait for its end of the connection.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Sequence

from daemons.transfer.transports.base import ClosingPath

GRACE_S = 0.25
"""How long a failing WRITE waits for a target that is alive; it answers in microseconds."""


class HalfClosed:
    """Thread safe. Takes the socket over. By `token`, if any, the target can be asked elsewhere to end it."""

    def __init__(self, sock: socket.socket, token: bytes = b"") -> None:
        self.token = token
        self._sock = sock
        self._lock = threading.Lock()
        self._is_closed = False
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)

    def wait_closed(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while not self._is_closed:
            with self._lock:
                self._look()
            if time.monotonic() >= deadline_s:
                break
        return self._is_closed

    def was_ended(self) -> None:
        """The target said over another path that it has ended this one."""
        with self._lock:
            self._is_closed = True
            self._sock.close()

    def _look(self) -> None:
        """Waits a tick. Only the target's own end counts; a network that went silent proves nothing."""
        if self._is_closed:
            return
        try:
            self._is_closed = self._sock.recv(4096) == b""
        except BlockingIOError:
            return
        except ConnectionError:
            self._is_closed = True
        except OSError:
            time.sleep(0.05)
        if self._is_closed:
            self._sock.close()


class ClosingPaths:
    """Of a WRITE that went over several connections."""

    def __init__(self, paths: Sequence[ClosingPath]) -> None:
        self._paths = paths

    def wait_closed(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        return all(path.wait_closed(deadline_s - time.monotonic()) for path in self._paths)
