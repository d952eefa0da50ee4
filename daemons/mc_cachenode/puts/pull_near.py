"""Small objects whose bytes came with the put, or lie in memory that is mapped here already: taken at once, for less
than it costs to wake a worker.

The same rules as for every pull: the generation is read before and after the bytes, and the peer must still be there.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from daemons.core.units import KIB
from daemons.mc_cachenode.puts.pull import PullOutcome, PullTask
from daemons.protocol.segment import Generation, RegionRef
from daemons.store.segment.seal import Trailer, payload_checksums, seal
from daemons.transfer import TransferEngine

MAX_NEAR_BYTES: Final = 68 * KIB
"""Of one message, a value of 64 KiB with what lies behind it: copied and hashed in some ten microseconds."""
_WORD: Final = np.dtype("<u8")


def pull_near(engine: TransferEngine, task: PullTask) -> PullOutcome | None:
    """None: a worker has to pull it, and to say what is wrong with it."""
    block, started_s = task.block, time.monotonic()
    if not block.piece_bytes or block.checksums is not None:
        return None
    if block.source.ranges.row_bytes and not _copy(engine, task):
        return None
    replica, start = task.replica, block.source.ranges.row_bytes
    end = replica.offset + replica.length
    stored = replica.segment.view[replica.offset : end + replica.trailer_bytes]
    payload = stored[: replica.length]
    payload[start:] = block.tail
    checksums = payload_checksums(payload, block.num_layers, block.piece_bytes)
    packed, seal_checksum = seal(
        Trailer(
            block.meta.hash, replica.version, replica.length, tuple(checksums), block.piece_bytes
        )
    )
    stored[replica.length :] = packed
    return PullOutcome(task, seal_checksum, time.monotonic() - started_s)


def _copy(engine: TransferEngine, task: PullTask) -> bool:
    """The bytes of the source, as its generation promised them; False where they cannot be had from here at once."""
    source, replica = task.block.source, task.replica
    ranges, guard = source.ranges, source.generation
    near = engine.mapped(source.region)
    if near is None:
        return False
    memory, is_there = near
    first, last = ranges.offset, ranges.offset + ranges.row_bytes
    if not 0 <= first <= last <= memory.nbytes:
        return False
    word = None
    if guard is not None:
        word = _word(engine, source.region, guard)
        if word is None or word.item() != guard.value:
            return False
    copied = replica.segment.array[replica.offset : replica.offset + ranges.row_bytes]
    np.copyto(copied, memory[first:last])
    is_reused = guard is not None and word is not None and word.item() != guard.value
    return not is_reused and is_there()


def are_small(tasks: Sequence[PullTask]) -> bool:
    """Together: a loop does other things too."""
    return sum([task.replica.length for task in tasks]) <= MAX_NEAR_BYTES


def _word(engine: TransferEngine, region: RegionRef, guard: Generation) -> NDArray[Any] | None:
    """This word of the source's table of generations, as it is at each look; None where it cannot be seen from here."""
    table = RegionRef(
        address=region.address,
        region_id=guard.region_id,
        size_bytes=(guard.index + 1) * _WORD.itemsize,
    )
    found = engine.mapped(table)
    if found is None or not 0 <= guard.index < found[0].nbytes // _WORD.itemsize:
        return None
    return np.ndarray((), _WORD, found[0].data, guard.index * _WORD.itemsize)
