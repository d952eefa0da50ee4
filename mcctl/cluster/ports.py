"""Ports of 127.0.0.1 for daemons that are yet to start: nobody else gets one in between, nor while a daemon is away."""

import os
import random
import socket
import weakref
from typing import Final

from daemons.core.errors import Unavailable

_PORTS: Final = range(20_000, 32_000)
"""Below the range from which the kernel takes ports for outgoing connections."""


class ReservedPorts:
    """Each port belongs to a socket that is bound and does not listen, as long as this object lives, or until `free`.

    It was bound to be the only one; since then it allows others that set SO_REUSEADDR, as all our servers do, so that
    a daemon can listen on it, end, and listen again. Whoever connects meanwhile is refused, as on any free port.
    """

    def __init__(self) -> None:
        self._descriptor_by_port: dict[int, int] = {}
        weakref.finalize(self, _close_all, self._descriptor_by_port)

    def take(self) -> int:
        """Another one each time. Raises Unavailable."""
        for port in random.sample(_PORTS, len(_PORTS)):
            descriptor = _bind(port)
            if descriptor is not None:
                self._descriptor_by_port[port] = descriptor
                return port
        raise Unavailable("no free port between 20000 and 32000 on 127.0.0.1")

    def free(self, port: int) -> None:
        os.close(self._descriptor_by_port.pop(port))


def _bind(port: int) -> int | None:
    """A descriptor; None where the port is taken, if only by another reservation."""
    with socket.socket() as reserved:
        try:
            reserved.bind(("127.0.0.1", port))
        except OSError:
            return None
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return reserved.detach()


def _close_all(descriptor_by_port: dict[int, int]) -> None:
    for descriptor in descriptor_by_port.values():
        os.close(descriptor)
    descriptor_by_port.clear()
