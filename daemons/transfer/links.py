"""Which interface of this host leads to a peer; asks the kernel, sends nothing."""

import fcntl
import socket
import struct
from pathlib import Path
from typing import Final

_SIOCGIFADDR: Final = 0x8915


def interface_to(endpoint: str) -> str:
    """Of "host:port"; empty where there is none, as to oneself."""
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((host, int(port)))  # sends nothing: it only chooses the route
            name = _interface_of(sock, sock.getsockname()[0])
    except (OSError, ValueError):
        return ""
    return "" if name == "lo" else name


def _interface_of(sock: socket.socket, address: str) -> str:
    if sock.family == socket.AF_INET6:
        wanted = socket.inet_pton(socket.AF_INET6, address).hex()
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            if line.startswith(wanted):
                return line.split()[-1]
        return ""
    for _, name in socket.if_nameindex():
        request = struct.pack("16s24x", name.encode())
        try:
            reply = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
        except OSError:
            continue  # it has no IPv4 address
        if socket.inet_ntoa(reply[20:24]) == address:
            return name
    return ""
