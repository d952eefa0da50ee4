"""A config file of this host that can be read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Loaded:
    """A good file."""

    path: Path
    process: str
    config: Any
