"""What a check says."""

from typing import Final, Literal

import msgspec

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """error: something configured here cannot work; warning: it works, but worse, or not for long."""

    severity: Severity
    area: str
    what: str
    problem: str
    fix: str
