"""The futures by which a tier answers, and when a put need not be made at all."""

import logging
from concurrent.futures import Future, InvalidStateError
from typing import NamedTuple

from daemons.core.errors import Conflict, Exhausted, McError
from daemons.core.ids import short
from daemons.store.lower.block_record import BlockRecord

log = logging.getLogger(__name__)

RETRY_AFTER_MS = 100


class Waiting(NamedTuple):
    """A put that waits or is being written."""

    block: BlockRecord
    done: "Future[bool]"


def begun() -> "Future[bool]":
    """A future that its waiter cannot cancel: the write goes on all the same."""
    done: Future[bool] = Future()
    done.set_running_or_notify_cancel()
    return done


def finish(done: "Future[bool]", value: bool) -> None:
    """Unless `close` did not wait for it."""
    try:
        done.set_result(value)
    except InvalidStateError:
        log.debug("too late for the one who waited")


def fail(done: "Future[bool]", error: McError, *, is_cancelled: bool = False) -> None:
    """As `finish`; a put that was deleted has its answer all the same."""
    if is_cancelled:
        finish(done, False)
        return
    try:
        done.set_exception(error)
    except InvalidStateError:
        log.debug("too late for the one who waited")


def is_stored(held: BlockRecord, block: BlockRecord, where: str) -> bool:
    """Whether what is held makes the put needless. Raises Conflict."""
    if (held.version, held.seal_checksum) == (block.version, block.seal_checksum):
        return True
    if held.version >= block.version:
        raise Conflict(
            f"block {short(block.meta.hash)} is in {where} with other bytes or a newer version"
        )
    return False


def join(waiting: Waiting, block: BlockRecord, where: str) -> "Future[bool]":
    """The same bytes are on their way already."""
    if is_stored(waiting.block, block, where):
        return waiting.done
    raise Exhausted(
        f"an older version of block {short(block.meta.hash)} is being written",
        retry_after_ms=RETRY_AFTER_MS,
    )
