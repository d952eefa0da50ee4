"""The sd_notify protocol: a datagram to $NOTIFY_SOCKET; without one every call is a no-op."""

import os
import socket
from collections.abc import Sequence

from daemons.core.units import parse_whole


def notify(*fields: str, fds: Sequence[int] = ()) -> None:
    """Send e.g. "READY=1", "STATUS=...". Never raises: a lost notification must not end a daemon."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(address)
            message = ["\n".join(fields).encode()]
            if fds:
                socket.send_fds(sender, message, list(fds))
            else:
                sender.sendmsg(message)
    except OSError:
        return


def watchdog_interval_s() -> float | None:
    """Half of what systemd asks for, or None when it does not watch this process."""
    limit = os.environ.get("WATCHDOG_USEC", "")
    watched = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    limit_us = parse_whole(limit)
    return limit_us / 2e6 if limit_us is not None and watched == str(os.getpid()) else None
