"""Where a `--plot FILE` goes: SVG as drawn here, or PNG, which needs a font of the host for its words."""

import importlib
import os
from pathlib import Path

from daemons.core.errors import ConfigError

# What words are drawn in: the first of these that the reader's host has.
FONT_FAMILY = "DejaVu Sans, Liberation Sans, Noto Sans, Arial, sans-serif"
_FONT_FILES = (
    "DejaVuSans.ttf",
    "LiberationSans-Regular.ttf",
    "NotoSans-Regular.ttf",
    "Arial.ttf",
    "arial.ttf",
)
_FONT_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts")


def check_plot(path: Path) -> None:
    """Refuse, before anything is measured, what could not be written."""
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"--plot {path}: the name must end in .svg or .png")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: {path.parent} is no directory")
    if path.suffix == ".png" and not _has_font():
        raise ConfigError(
            f"--plot {path}: a .png needs a font on this host; apt install fonts-dejavu-core, or write a .svg"
        )


def write_plot(path: Path, image: str) -> None:
    """`image` is SVG."""
    try:
        if path.suffix == ".png":
            path.write_bytes(_png(image))
        else:
            path.write_text(image)
    except OSError as error:
        raise ConfigError(f"--plot {path}: cannot be written: {error.strerror}") from error


def _png(image: str) -> bytes:
    # Loaded by those alone who ask for it: it is as large as all the rest of mcctl.
    return bytes(importlib.import_module("resvg_py").svg_to_bytes(svg_string=image, zoom=2))


def _has_font() -> bool:
    return any(
        not set(_FONT_FILES).isdisjoint(names)
        for folder in _FONT_FOLDERS
        for _, _, names in os.walk(Path(folder).expanduser())
    )
