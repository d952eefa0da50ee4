"""The sockets of a data port: exactly the addresses it was told, and a UNIX path in a private directory."""

import socket
from collections.abc import Sequence
from pathlib import Path

from daemons.core.errors import ConfigError
from daemons.transfer.transports import sockets

_MAX_UNIX_PATH = 107
_BACKLOG = 128


def listen(
    hosts: Sequence[str], port: int, unix_path: Path | None
) -> tuple[list[socket.socket], list[str]]:
    """The sockets, and for each host the "host:port" that peers are told."""
    if len(set(hosts)) != len(hosts):
        raise ConfigError("a data address is named twice")
    listeners: list[socket.socket] = []
    endpoints: list[str] = []
    try:
        for host in hosts:
            listeners.append(_listen_tcp(host, port))
            bound = listeners[-1].getsockname()[1]
            endpoints.append(f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}")
        if unix_path is not None:
            listeners.append(_listen_unix(unix_path))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners, endpoints


def _listen_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        sockets.set_buffers_of_listener(listener)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port} for data: {error.strerror}") from error
    return listener


def _listen_unix(path: Path) -> socket.socket:
    if len(str(path)) > _MAX_UNIX_PATH:
        raise ConfigError(f"{path} is too long for a UNIX socket; choose a shorter directory")
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_dead_sockets(path.parent)
        listener.bind(str(path))
        try:
            listener.listen(_BACKLOG)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror}") from error
    return listener


def _remove_dead_sockets(directory: Path) -> None:
    """Sockets of processes that were killed; a live one accepts, and is left alone."""
    for path in directory.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0.2)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue
