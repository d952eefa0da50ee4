"""What a copy worker does to one block: read it from its source, hash it on the way, seal it in its slot.

Runs on worker threads and touches only the slot it was given.
"""

import logging
import time
from typing import NamedTuple

from daemons.core.errors import McError
from daemons.core.ids import short
from daemons.core.units import MIB
from daemons.mc_cachenode.replica import Replica
from daemons.protocol.block import PutBlock
from daemons.protocol.segment import Strided
from daemons.store.segment.seal import (
    BadSeal,
    Trailer,
    parse_trailer,
    payload_checksums,
    seal,
)
from daemons.transfer import Read, ReadBatch, TransferEngine, contiguous

log = logging.getLogger(__name__)

_GROUP_BYTES = MIB
"""Layers copied and then hashed while they are still in the CPU's cache."""


class PullTask(NamedTuple):
    """A block on its way into the slot of `replica`."""

    block: PutBlock
    replica: Replica


class PullOutcome(NamedTuple):
    """`seal_checksum` None: it failed, `why` says so, and the slot holds nothing of worth."""

    task: PullTask
    seal_checksum: int | None
    seconds: float
    why: str = ""


def pull(engine: TransferEngine, task: PullTask, timeout_s: float) -> PullOutcome:
    """Never raises: every failure is an outcome, or the put would never be answered."""
    started_s = time.monotonic()
    try:
        checksum = _pull(engine, task, timeout_s)
    except McError as error:
        log.debug("pull failed block=%s why=%s", short(task.block.meta.hash), error.message)
        return PullOutcome(task, None, time.monotonic() - started_s, error.message)
    except Exception as error:
        log.exception("pull failed block=%s", short(task.block.meta.hash))
        why = f"internal error: {type(error).__name__}; see the log of this node"
        return PullOutcome(task, None, time.monotonic() - started_s, why)
    return PullOutcome(task, checksum, time.monotonic() - started_s)


def _pull(engine: TransferEngine, task: PullTask, timeout_s: float) -> int:
    block, replica = task.block, task.replica
    pull_all = _pull_pieces if block.piece_bytes else _pull_layers
    checksums = pull_all(engine, task, timeout_s)
    if block.checksums is not None and block.checksums != checksums:
        raise BadSeal("the bytes are not those the source announced by its checksums")
    packed, seal_checksum = seal(
        Trailer(
            block.meta.hash, replica.version, replica.length, tuple(checksums), block.piece_bytes
        )
    )
    replica.packed_trailer[:] = packed
    return seal_checksum


def _pull_pieces(engine: TransferEngine, task: PullTask, timeout_s: float) -> list[int]:
    """An object's bytes, then its tail, which came with the message."""
    block, replica = task.block, task.replica
    source, piece = block.source.ranges, block.piece_bytes
    payload = replica.payload
    payload[source.length : source.length + len(block.tail)] = block.tail
    checksums: list[int] = []

    def hash_piece(index: int) -> None:
        checksums.extend(payload_checksums(payload[index * piece : (index + 1) * piece], 1, piece))

    starts = range(0, source.length, piece)
    reads = [
        Read.into(
            contiguous(source.offset + start, min(piece, source.length - start)),
            replica.segment.array,
            replica.offset + start,
        )
        for start in starts
    ]
    if reads:
        engine.run(
            ReadBatch(
                region=block.source.region,
                reads=reads,
                generation=block.source.generation,
                timeout_s=timeout_s,
                on_read=hash_piece,
            )
        )
    for index in range(len(reads), block.num_layers):
        hash_piece(index)
    return checksums


def _pull_layers(engine: TransferEngine, task: PullTask, timeout_s: float) -> list[int]:
    block, replica = task.block, task.replica
    groups = _groups(block)
    checksums: list[int] = []

    def hash_group(index: int) -> None:
        first, last = groups[index]
        row_bytes = block.source.ranges.row_bytes
        rows = replica.payload[2 * first * row_bytes : 2 * last * row_bytes]
        checksums.extend(payload_checksums(rows, last - first))

    engine.run(
        ReadBatch(
            region=block.source.region,
            reads=[_read(block, replica, group) for group in groups],
            generation=block.source.generation,
            timeout_s=timeout_s,
            on_read=hash_group,
        )
    )
    return checksums


def is_intact(replica: Replica) -> bool:
    """Hash a sealed block again. Only a verdict on the slot while the replica is still sealed afterwards."""
    try:
        trailer = parse_trailer(replica.packed_trailer, replica.seal_checksum, replica.meta.hash)
    except BadSeal:
        return False
    found = payload_checksums(replica.payload, replica.num_layers, trailer.piece_bytes)
    return list(trailer.checksums) == found


def _groups(block: PutBlock) -> list[tuple[int, int]]:
    """[first, last) layers, about a MiB each."""
    layers = max(1, _GROUP_BYTES // (2 * block.source.ranges.row_bytes))
    return [
        (first, min(first + layers, block.num_layers))
        for first in range(0, block.num_layers, layers)
    ]


def _read(block: PutBlock, replica: Replica, group: tuple[int, int]) -> Read:
    first, last = group
    ranges = block.source.ranges
    remote = Strided(
        offset=ranges.offset + 2 * first * ranges.stride_bytes,
        row_bytes=ranges.row_bytes,
        num_rows=2 * (last - first),
        stride_bytes=ranges.stride_bytes,
    )
    return Read.into(remote, replica.segment.array, replica.offset + 2 * first * ranges.row_bytes)
