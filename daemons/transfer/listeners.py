"""The sockets of a data port: exactly the addresses it was told, and a UNIX path in a private directory."""

import socket
from pathlib import Path

from daemons.core.errors import ConfigError
from daemons.transfer.transports import sockets

_MAX_UNIX_PATH = 107
_BACKLOG = 128


def listen(tcp: tuple[str, int] | None, unix_path: Path | None) -> tuple[list[socket.socket], str]:
    """The sockets, and the "host:port" that peers are told."""
    listeners: list[socket.socket] = []
    endpoint = ""
    try:
        if tcp is not None:
            host = tcp[0]
            listeners.append(_listen_tcp(host, tcp[1]))
            port = listeners[0].getsockname()[1]
            endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if unix_path is not None:
            listeners.append(_listen_unix(unix_path))
    except ConfigError:
        for listener in listeners:
            listener.close()
        raise
    return listeners, endpoint


def _listen_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sockets.set_buffers(listener)
        listener.bind((host, port))
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
        listener.listen(_BACKLOG)
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
