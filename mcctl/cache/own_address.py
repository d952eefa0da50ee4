"""Which address of this host others reach it at, told from the route to the master."""

import socket
from typing import Final

from daemons.protocol.address import address_of

_UNKNOWN: Final = "127.0.0.1"


def own_address(master: str) -> str:
    """Where the route to the master begins; loopback where there is none. Sends nothing."""
    host, _, port = address_of(master).removeprefix("tcp://").rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
        family, _, _, _, target = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return _UNKNOWN
