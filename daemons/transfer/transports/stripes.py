"""A large batch over several connections: cut into parts of about equal size, each run by a thread of its own."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from daemons.core.errors import McError
from daemons.protocol.segment import Strided
from daemons.transfer.strided import contiguous
from daemons.transfer.transports.base import (
    Cancelled,
    Flag,
    NotOver,
    Read,
    ReadBatch,
    Write,
    WriteBatch,
)
from daemons.transfer.transports.fence import ClosingPaths

B = TypeVar("B", ReadBatch, WriteBatch)


class EitherFlag:
    """Set when either is."""

    def __init__(self, one: Flag | None, other: Flag) -> None:
        self._one, self._other = one, other

    def is_set(self) -> bool:
        return self._other.is_set() or (self._one is not None and self._one.is_set())


def run_parts(
    batch: B, parts: Sequence[B], run: Callable[[B], None], pool: ThreadPoolExecutor
) -> None:
    """Return or raise when all of them have ended; the first failure stops the others."""
    stop = threading.Event()
    errors: list[McError] = []

    def run_one(part: B) -> None:
        part.deadline_s = batch.deadline_s
        part.cancelled = EitherFlag(batch.cancelled, stop)
        try:
            run(part)
        except McError as error:
            errors.append(error)
            stop.set()

    others = [pool.submit(run_one, part) for part in parts[1:]]
    run_one(parts[0])
    for other in others:
        other.result()
    raise_first(batch, errors)


def raise_first(batch: ReadBatch | WriteBatch, errors: Sequence[McError]) -> None:
    """The error that counts, with every path that is still open."""
    if not errors:
        return
    is_cancelled = batch.cancelled is not None and batch.cancelled.is_set()
    own = [e for e in errors if is_cancelled or not isinstance(e, Cancelled)] or list(errors)
    open_paths = [error.path for error in errors if isinstance(error, NotOver)]
    if open_paths:
        raise NotOver(own[0].message, ClosingPaths(open_paths)) from own[0]
    raise own[0]


def cut_reads(batch: ReadBatch, num_parts: int) -> list[ReadBatch]:
    share = -(-sum(read.remote.length for read in batch.reads) // num_parts)
    parts: list[list[Read]] = [[]]
    room = share
    for whole in batch.reads:
        remote, local, target = whole
        while target.num_rows == 1 and 0 < room < remote.length and len(parts) < num_parts:
            head, tail = _split(remote, room)
            if head is None or tail is None:
                break
            parts[-1].append(Read(head, local, contiguous(target.offset, head.length)))
            remote = tail
            target = contiguous(target.offset + head.length, tail.length)
            parts.append([])
            room = share
        if room <= 0 and len(parts) < num_parts:
            parts.append([])
            room = share
        parts[-1].append(Read(remote, local, target))
        room -= remote.length
    return [
        dataclasses.replace(batch, reads=part, progress=None, notify=None) for part in parts if part
    ]


def cut_writes(batch: WriteBatch, num_parts: int) -> list[WriteBatch]:
    share = -(-batch.length // num_parts)
    parts: list[list[Write]] = [[]]
    room = share
    for whole in batch.writes:
        local, source, remote = whole
        while source.num_rows == 1 and 0 < room < remote.length and len(parts) < num_parts:
            head, tail = _split(remote, room)
            if head is None or tail is None:
                break
            parts[-1].append(Write(local, contiguous(source.offset, head.length), head))
            remote = tail
            source = contiguous(source.offset + head.length, tail.length)
            parts.append([])
            room = share
        if room <= 0 and len(parts) < num_parts:
            parts.append([])
            room = share
        parts[-1].append(Write(local, source, remote))
        room -= remote.length
    return [
        dataclasses.replace(batch, writes=part, progress=None, notify=None)
        for part in parts
        if part
    ]


def _split(ranges: Strided, room: int) -> tuple[Strided | None, Strided | None]:
    """About the first `room` bytes, and the rest; whole rows where there are several."""
    if ranges.num_rows == 1:
        return (
            contiguous(ranges.offset, room),
            contiguous(ranges.offset + room, ranges.row_bytes - room),
        )
    rows = max(1, room // ranges.row_bytes)
    if rows >= ranges.num_rows:
        return None, None
    tail = ranges.num_rows - rows
    step = ranges.stride_bytes
    return (
        Strided(offset=ranges.offset, row_bytes=ranges.row_bytes, num_rows=rows, stride_bytes=step),
        Strided(
            offset=ranges.offset + rows * step,
            row_bytes=ranges.row_bytes,
            num_rows=tail,
            stride_bytes=step,
        ),
    )
