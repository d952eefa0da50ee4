"""Addresses of servers as texts: tcp://HOST:PORT, and where the server has keys tcp://HOST:PORT#PUBLICKEY.

The key travels with the address, so whoever is told where a node is also knows whom to expect there.
"""

import ipaddress
import re
from typing import Final

from daemons.core.ids import PublicKey

_KEY: Final = re.compile(r"[0-9a-f]{64}")


def is_public_key(text: str) -> bool:
    """64 hex digits, in lower case: 32 bytes."""
    return _KEY.fullmatch(text) is not None


def with_key(address: str, key: PublicKey | None) -> str:
    return address if key is None else f"{address}#{key}"


def split_key(endpoint: str) -> tuple[str, PublicKey | None]:
    """(address to connect to, public key of who must be there). What is no key is no part of an address either."""
    address, _, key = endpoint.partition("#")
    return address, PublicKey(key) if is_public_key(key) else None


def address_of(endpoint: str) -> str:
    """Without the key: for people, and for comparing."""
    return endpoint.partition("#")[0]


def is_loopback(address: str) -> bool:
    """Whether only processes of this host reach it: tcp on a loopback address, a UNIX socket, or a bare host.

    A name other than localhost may mean anything, so it counts as public.
    """
    if address.startswith(("ipc://", "inproc://")):
        return True
    host = address.partition("://")[2] or address
    if host.count(":") == 1 or host.startswith("["):
        host = host.rpartition(":")[0]
    host = host.strip("[]").partition("%")[0]
    if host == "localhost":
        return True
    found = _ip(host)
    return found is not None and found.is_loopback


def is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of a host, in whichever spelling."""
    found = _ip(host)
    return host in ("*", "0") or (found is not None and found.is_unspecified)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
