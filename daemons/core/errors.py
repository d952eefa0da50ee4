"""Errors by what a caller can do about them. Leaves live beside the code that raises them.

McError
  NotFound        3   no such thing
  Conflict        4   lease held, other bytes under a sealed name
  Rejected        5   refused on purpose: SLO, quota, bad request
  Exhausted       6   no space now: blocks, segment, queue
  Unavailable     7   timeout, peer gone, draining
  TransferError   8   bytes did not arrive
  ProtocolError   9   a peer speaks another language
  ConfigError    78   the operator must change something

The number is the exit code of mcctl, and of a daemon that cannot start; `code` is the name on the wire; `retry` says
whether trying again helps.
"""

from typing import ClassVar, Final, Literal

Retry = Literal["never", "later", "elsewhere"]


class McError(Exception):
    """Root of every expected failure; the message says what, where and the next step."""

    code: ClassVar[str] = "error"
    retry: ClassVar[Retry] = "never"

    def __init__(self, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms


class NotFound(McError):
    code = "not_found"


class Conflict(McError):
    code = "conflict"


class Rejected(McError):
    code = "rejected"


class Exhausted(McError):
    code = "exhausted"
    retry = "later"


class Unavailable(McError):
    code = "unavailable"
    retry = "elsewhere"


class TransferError(McError):
    code = "transfer"
    retry = "elsewhere"


class ProtocolError(McError):
    code = "protocol"


class ConfigError(McError):
    code = "config"


FAMILIES: dict[str, type[McError]] = {
    family.code: family
    for family in (
        NotFound,
        Conflict,
        Rejected,
        Exhausted,
        Unavailable,
        TransferError,
        ProtocolError,
        ConfigError,
    )
}


EXIT_BUG: Final = 1
EXIT_CODES: Final = {
    "not_found": 3,
    "conflict": 4,
    "rejected": 5,
    "exhausted": 6,
    "unavailable": 7,
    "transfer": 8,
    "protocol": 9,
    "config": 78,
}
"""By family."""


def exit_code(error: McError) -> int:
    """Of its family; EXIT_BUG for one of none."""
    return EXIT_CODES.get(family_of(error), EXIT_BUG)


def family_of(error: McError) -> str:
    """Wire code of the family a leaf belongs to."""
    for base in type(error).__mro__:
        if base in FAMILIES.values():
            return str(base.code)  # type: ignore[attr-defined]  # every family has one
    return "error"
