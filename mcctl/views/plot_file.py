"""Where a `--plot FILE` goes: SVG as drawn here, PNG where the optional cairosvg is installed."""

import importlib
from pathlib import Path
from typing import Any

from daemons.core.errors import ConfigError


def check_plot(path: Path) -> None:
    """Refuse, before anything is measured, what could not be written."""
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"--plot {path}: the name must end in .svg or .png")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: {path.parent} is no directory")
    if path.suffix == ".png":
        _cairosvg()


def write_plot(path: Path, image: str) -> None:
    """`image` is SVG."""
    try:
        if path.suffix == ".png":
            _cairosvg().svg2png(bytestring=image.encode(), write_to=str(path), scale=2)
        else:
            path.write_text(image)
    except OSError as error:
        raise ConfigError(f"--plot {path}: cannot be written: {error.strerror}") from error


def _cairosvg() -> Any:
    try:
        return importlib.import_module("cairosvg")
    except (ImportError, OSError):
        raise ConfigError(
            "--plot: a .png needs the Python package cairosvg; pip install cairosvg, or write a .svg"
        ) from None
