"""Error family -> exit code of mcctl: the stable contract that scripts test; listed in man/mcctl.1."""

from typing import Final

from daemons.core.errors import McError, family_of

OK: Final = 0
BUG: Final = 1
"""Also the answer "no" of a verb that compares (quickstart)."""
USAGE: Final = 2
INTERRUPTED: Final = 130

BY_FAMILY: Final = {
    "not_found": 3,
    "conflict": 4,
    "rejected": 5,
    "exhausted": 6,
    "unavailable": 7,
    "transfer": 8,
    "protocol": 9,
    "config": 78,
}


def exit_code(error: McError) -> int:
    return BY_FAMILY.get(family_of(error), BUG)
