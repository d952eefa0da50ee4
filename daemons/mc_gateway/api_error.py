"""Errors as an OpenAI client reads them: a status and {"error": {message, type, param, code}}."""

import math
import re
from typing import Final

import msgspec

from daemons.core.errors import Exhausted, McError, NotFound, Rejected, TransferError, Unavailable
from daemons.protocol.failure import Unwelcome

_TYPES: Final = {
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}


_MAX_MESSAGE: Final = 600
_ADDRESS: Final = re.compile(
    r"\b(?:tcp|ipc|inproc)://[^\s;,'\"`)]+(?<![.:])|(?:\b\d+(?:\.\d+){3}|\[[\da-fA-F:.]+\]):\d+\b"
)


class ErrorObject(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorObject


class ApiError(Exception):
    """What the client gets instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        kind = _TYPES.get(self.status, "invalid_request_error")
        message = self.message
        if self.status >= 429:  # of the cluster and not of what was sent; the log has all of it
            message = _ADDRESS.sub("a node of the cluster", message)
        if len(message) > _MAX_MESSAGE:  # a value that the client sent may be quoted in it
            message = message[:_MAX_MESSAGE] + "..."
        return msgspec.json.encode(ErrorBody(ErrorObject(message, kind, self.param, self.code)))

    def headers(self) -> dict[str, str]:
        found = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        return found | ({"www-authenticate": "Bearer"} if self.status == 401 else {})


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)


def overloaded(message: str, retry_after_s: int = 1) -> ApiError:
    return ApiError(429, message, code="overloaded", retry_after_s=retry_after_s)


def from_mc_error(error: McError) -> ApiError:
    """Statuses of what the cluster answered; a client may retry 429 and 503, so those say when."""
    later_s = max(1, math.ceil((error.retry_after_ms or 0) / 1000))
    match error:
        case Unwelcome():  # nothing that the client could put right, nor is it told about
            return ApiError(
                503,
                "the cluster does not let this gateway in; its log says why",
                code="unavailable",
                retry_after_s=later_s,
            )
        case Rejected(retry_after_ms=None):
            return bad_request(error.message, code="rejected")  # asked again it would be no better
        case Rejected():
            return ApiError(429, error.message, code="rejected", retry_after_s=later_s)
        case NotFound():
            return ApiError(404, error.message, code="model_not_found", param="model")
        case Exhausted():
            return ApiError(429, error.message, code="exhausted", retry_after_s=later_s)
        case Unavailable() | TransferError():
            return ApiError(503, error.message, code="unavailable", retry_after_s=later_s)
        case _:
            return ApiError(500, error.message, code=error.code)
