"""The object store as verbs of `mcctl cache` use it: names as the shell gives them, values from and to files."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import typer

from daemons.client.objects.store import Store
from daemons.core.errors import ConfigError, Exhausted
from daemons.core.units import format_size
from mcctl.settings import Settings


def open_store(settings: Settings, namespace: str, bind_host: str = "127.0.0.1") -> Store:
    """Who puts nothing is read by nobody, and needs no other address."""
    return Store(
        settings.master,
        namespace=os.fsencode(namespace),
        timeout_s=settings.wait_s,
        bind_host=bind_host,
        key_file=settings.key_file,
    )


def name_of(text: str) -> bytes:
    """What the shell gave, byte for byte. Raises BadParameter for what no object can be called."""
    name = os.fsencode(text)
    if not 0 < len(name) <= 256:
        raise typer.BadParameter(f"a name has 1 to 256 bytes, not {len(name)}")
    return name


def shown(name: bytes) -> str:
    """As text; bytes that are none as escapes."""
    return name.decode("utf-8", "backslashreplace")


def read_value(file: str) -> Any:
    """A file is mapped, not read: a large value is not copied here. Pipes, and /proc's files, say no size."""
    if file == "-":
        return sys.stdin.buffer.read()
    path = Path(file)
    try:
        if path.is_char_device():
            raise ConfigError(f"{path}: a device has no end; name a file, or - for stdin")
        return np.memmap(path, np.uint8, "r") if path.stat().st_size else path.read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def size_of(value: Any) -> int:
    return len(value) if isinstance(value, bytes) else int(value.nbytes)


def write_value(out: Path, value: bytes) -> None:
    """A new file is written whole or not at all. Raises Exhausted where there is no room for it, ConfigError."""
    was_there = out.exists()
    try:
        out.write_bytes(value)
    except OSError as error:
        if not was_there:
            out.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Exhausted(
                f"{out}: {error.strerror}; {format_size(len(value))} are to be written"
            ) from None
        raise ConfigError(f"{out}: {error.strerror}") from None
