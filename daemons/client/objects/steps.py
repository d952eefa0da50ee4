"""What a call on the store does, as steps that somebody else carries out: with a thread that waits, or in asyncio.

Generators yield a step and get its outcome; what goes wrong is thrown in. So the rules of puts and look-ups are written
once, and know neither sockets nor threads.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from daemons.core.errors import McError, ProtocolError, Unavailable
from daemons.core.units import format_duration
from daemons.protocol.base import Message
from daemons.protocol.messages import Reply

_RETRY_S: Final = 0.05

Result = TypeVar("Result")
ReplyType = TypeVar("ReplyType", bound=Message)


@dataclass(frozen=True, slots=True)
class AskMaster:
    """Its outcome is the reply or a McError. `meanwhile` is called once it is sent: it raises nothing, and is quick."""

    message: Message
    timeout_s: float
    meanwhile: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class AskNodes:
    """All at once; its outcome is a reply or a McError for each."""

    asked: Sequence[tuple[str, Message]]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing happens for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Copying, hashing, reading: its outcome is what the call returns. It ends by itself within the caller's time.

    `writes_to_caller`: into memory that is not ours, so nobody goes on before it has ended.
    """

    call: Callable[[], Any]
    writes_to_caller: bool = False


Step = AskMaster | AskNodes | Pause | Work
Steps = Generator[Step, Any, Result]


class Closed(Unavailable):
    """The store was closed before: no later try helps."""


def ask_master(
    message: Message,
    reply_type: type[ReplyType],
    timeout_s: float,
    meanwhile: Callable[[], object] | None = None,
) -> Steps[ReplyType]:
    """Raises the family of McError that it answered with, or Unavailable."""
    reply: Reply | McError = yield AskMaster(message, timeout_s, meanwhile)
    if isinstance(reply, reply_type):
        return reply
    if isinstance(reply, McError):
        raise reply
    raise ProtocolError(
        f"the master answered {type(message).__name__} with {type(reply).__name__}; is it mc-master?"
    )


def ask_patiently(
    message: Message,
    reply_type: type[ReplyType],
    timeout_s: float,
    meanwhile: Callable[[], object] | None = None,
) -> Steps[ReplyType]:
    """`ask_master`, again while it is Unavailable and there is time: for what may be done twice, `meanwhile` too."""
    deadline_s = time.monotonic() + timeout_s
    left_s = timeout_s
    while True:
        try:
            return (yield from ask_master(message, reply_type, left_s, meanwhile))
        except Closed:
            raise
        except Unavailable as error:
            if time.monotonic() + _RETRY_S >= deadline_s:
                if left_s == timeout_s:
                    raise
                # The last try had what was left of the time; who asked knows the whole of it alone.
                raise Unavailable(
                    f"given up after {format_duration(timeout_s)} of tries; the last one: {error.message}",
                    retry_after_ms=error.retry_after_ms,
                ) from None
        yield Pause(_RETRY_S)
        left_s = max(0.05, deadline_s - time.monotonic())


def ask_nodes(
    asked: Sequence[tuple[str, Message]], timeout_s: float
) -> Steps[list[Reply | McError]]:
    replies: list[Reply | McError] = yield AskNodes(asked, timeout_s)
    return replies


def work(call: Callable[[], Result], *, writes_to_caller: bool = False) -> Steps[Result]:
    result: Result = yield Work(call, writes_to_caller)
    return result
