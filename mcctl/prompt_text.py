"""The text that --prompt, --file or stdin gives."""

import sys
from pathlib import Path

import typer

from daemons.core.errors import NotFound


def read_text(prompt: str | None, file: Path | None) -> str:
    """Exactly one of them; `-` is stdin. An empty one, as of a variable that is not set, is a slip."""
    if (prompt is None) == (file is None):
        raise typer.BadParameter("give --prompt or --file")
    text = prompt if file is None else _read(file)
    if not text:
        raise typer.BadParameter(
            f"{'--prompt' if file is None else file} is empty; there is nothing to ask"
        )
    return text


def _read(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}; name another --file") from None
    except UnicodeDecodeError:
        raise NotFound(f"{file} is not UTF-8 text; name another --file") from None
