"""How long a benchmark waits for what it does not measure."""

from typing import Final

PATIENCE_S: Final = 300.0
"""A machine that is busy with other things makes figures worse; it must not end the run."""
