"""The one shape of an error on the wire; the receiver raises the same family again."""

from daemons.core.errors import FAMILIES, McError, Rejected, family_of
from daemons.protocol.base import Message


class Unwelcome(Rejected):
    """For the asker's key, whatever was asked: none is known, it was revoked, or it is another role's."""

    code = "unwelcome"


class Failure(Message, frozen=True, kw_only=True):
    """`code` is a family of core/errors.py."""

    code: str
    message: str
    retry_after_ms: int | None = None
    is_unwelcome: bool = False
    """Refused for the key that the connection proved."""


def to_failure(error: McError) -> Failure:
    return Failure(
        code=family_of(error),
        message=error.message,
        retry_after_ms=error.retry_after_ms,
        is_unwelcome=isinstance(error, Unwelcome),
    )


def to_error(failure: Failure) -> McError:
    family = Unwelcome if failure.is_unwelcome else FAMILIES.get(failure.code, McError)
    return family(failure.message, retry_after_ms=failure.retry_after_ms)
