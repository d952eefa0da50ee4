"""Whether what the configs want to listen on can be had, and who has it."""

import errno
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from daemons.core.units import parse_whole
from daemons.protocol.address import is_wildcard
from mcctl.doctor.finding import Finding

_LISTENING: Final = "0A"


@dataclass(frozen=True, slots=True)
class Wanted:
    """An address some config binds, and for whom."""

    host: str
    port: int
    process: str
    key: str
    path: str

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(address: str) -> tuple[str, int] | None:
    """tcp://HOST:PORT or HOST:PORT; None for what is no fixed TCP port of this host."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    number = parse_whole(port)
    return None if address.startswith("ipc://") or not number else (host.strip("[]"), number)


def check_ports(wanted: Iterable[Wanted]) -> Iterator[Finding]:
    """Two configs for one port; an address of another host; a port that someone else has."""
    taken: dict[tuple[str, int], Wanted] = {}
    for want in wanted:
        other = next(
            (
                o
                for (host, port), o in taken.items()
                if port == want.port and _overlap(host, want.host)
            ),
            None,
        )
        taken[want.host, want.port] = want
        if other is not None:
            yield Finding(
                severity="error",
                area="ports",
                what=want.address,
                problem=f"`{want.key}` of {want.path} and `{other.key}` of {other.path} are the same",
                fix=f"give one of them another port in `{want.key}`",
            )
            continue
        yield from _check_one(want)


def _check_one(want: Wanted) -> Iterator[Finding]:
    why = why_not_bound(want.host, want.port)
    if why == errno.EADDRNOTAVAIL:
        yield Finding(
            severity="error",
            area="ports",
            what=want.address,
            problem=f"`{want.key}` of {want.path}: no interface of this host has {want.host}",
            fix="use an address from `ip address`, or the config on the host it is for",
        )
    elif why == errno.EACCES:
        yield Finding(
            severity="error",
            area="ports",
            what=want.address,
            problem=f"`{want.key}` of {want.path}: port {want.port} needs root",
            fix="use a port from 1024 on",
        )
    elif why == errno.EADDRINUSE:
        yield _in_use(want)


def _in_use(want: Wanted) -> Finding:
    holder = holder_of(want.port)
    if holder is None:
        return Finding(
            severity="info",
            area="ports",
            what=want.address,
            problem=f"in use, by whom only root can see (`{want.key}` of {want.path})",
            fix=f"nothing if it is {want.process}; sudo mcctl doctor says who it is",
        )
    pid, command = holder
    is_ours = want.process in command or want.process.replace("-", "_") in command
    return Finding(
        severity="info" if is_ours else "error",
        area="ports",
        what=want.address,
        problem=f"in use by pid {pid}: {command[:80]}",
        fix="nothing: it runs" if is_ours else f"stop it, or change `{want.key}` of {want.path}",
    )


def why_not_bound(host: str, port: int) -> int | None:
    """errno of a bind, None when it went well; it is undone at once."""
    address = host if host != "*" else "0.0.0.0"  # what ZeroMQ makes of it
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError:
        return errno.EADDRNOTAVAIL
    family, kind, protocol, _, place = found[0]
    with socket.socket(family, kind, protocol) as probe:
        # As servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            return error.errno
    return None


def holder_of(port: int) -> tuple[int, str] | None:
    """(pid, command) of who listens there; None when nobody does or we may not see."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or not sockets:
            continue
        try:
            if any(str(fd.readlink()) in sockets for fd in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().split(b"\0")
                return int(process.name), b" ".join(words).decode(errors="replace").strip()
        except OSError:
            continue
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _overlap(one: str, other: str) -> bool:
    return one == other or is_wildcard(one) or is_wildcard(other)
