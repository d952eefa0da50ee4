"""The one shape of an error on the wire; the receiver raises the same family again."""

from daemons.core.errors import FAMILIES, McError, family_of
from daemons.protocol.base import Message


class Failure(Message, frozen=True, kw_only=True):
    """`code` is a family of core/errors.py."""

    code: str
    message: str
    retry_after_ms: int | None = None


def to_failure(error: McError) -> Failure:
    return Failure(
        code=family_of(error), message=error.message, retry_after_ms=error.retry_after_ms
    )


def to_error(failure: Failure) -> McError:
    family = FAMILIES.get(failure.code, McError)
    return family(failure.message, retry_after_ms=failure.retry_after_ms)
