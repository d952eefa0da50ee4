"""Exit codes of mcctl, those of the error families and its own: the contract that scripts test, in man/mcctl.1."""

from typing import Final

from daemons.core.errors import EXIT_BUG, EXIT_CODES, exit_code

OK: Final = 0
BUG: Final = EXIT_BUG
"""Also the answer "no" of a verb that compares (quickstart)."""
USAGE: Final = 2
INTERRUPTED: Final = 130

BY_FAMILY: Final = EXIT_CODES

__all__ = ["BUG", "BY_FAMILY", "INTERRUPTED", "OK", "USAGE", "exit_code"]
