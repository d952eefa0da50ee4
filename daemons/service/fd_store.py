"""systemd's fd store: descriptors, such as of memory, that it keeps while this process is away.

It hands them to the unit's next process as sd_listen_fds(3) says, as many as FileDescriptorStoreMax= allows. They are
gone once the unit is stopped, and with that what only they held.
"""

import contextlib
import os
import socket
from typing import Final

from daemons.core.units import parse_whole
from daemons.service.notify import notify

_FIRST_FD: Final = 3
_BARRIER_S: Final = 5.0


class FdStore:
    """One thread. Without systemd nothing is kept, and nothing is there."""

    def __init__(self) -> None:
        self.is_there = bool(os.environ.get("NOTIFY_SOCKET"))
        self._left = _inherited()

    def names(self) -> list[str]:
        """Of what the process before left and nobody has taken yet."""
        return list(self._left)

    def take(self, name: str) -> int | None:
        """The caller closes it; systemd keeps its own until `forget`."""
        return self._left.pop(name, None)

    def keep(self, name: str, fd: int) -> None:
        """Not polled: memory has no other end that could close. Never raises, as `notify`."""
        notify("FDSTORE=1", f"FDNAME={name}", "FDPOLL=0", fds=(fd,))

    def forget(self, name: str) -> None:
        """The next process finds nothing by this name."""
        fd = self.take(name)
        if fd is not None:
            os.close(fd)
        notify("FDSTOREREMOVE=1", f"FDNAME={name}")

    def wait_until_heard(self) -> None:
        """systemd has let go of what was forgotten, so that its memory is free for others."""
        if not self.is_there:
            return
        reader, writer = socket.socketpair()
        with reader:
            with writer:
                # It closes what comes with this after all that was sent before (sd_notify_barrier(3)).
                notify("BARRIER=1", fds=(writer.fileno(),))
            reader.settimeout(_BARRIER_S)
            with contextlib.suppress(OSError):
                reader.recv(1)


def _inherited() -> dict[str, int]:
    """Once a process: the variables are taken out of its environment, or its children would think they are meant."""
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or parse_whole(count) != len(names):
        return {}
    found: dict[str, int] = {}
    for fd, name in enumerate(names, _FIRST_FD):
        os.set_inheritable(fd, False)
        if name in found:
            os.close(found[name])
        found[name] = fd
    return found
