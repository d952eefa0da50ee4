"""Small objects out of memory that is mapped here already: pulled at once, for less than it costs to wake a worker.

The same rules as for every pull: the generation is read before and after the bytes, and the peer must still be there.
"""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from daemons.core.units import KIB
from daemons.mc_cachenode.pull import PullOutcome, PullTask
from daemons.protocol.segment import Generation, RegionRef
from daemons.store.seal import Trailer, payload_checksums, seal
from daemons.transfer import ByteArray, TransferEngine

MAX_NEAR_BYTES: Final = 64 * KIB
"""Of one message: copied and hashed in some ten microseconds."""
_WORD_BYTES: Final = 8


def pull_near(engine: TransferEngine, task: PullTask) -> PullOutcome | None:
    """None: a worker has to pull it, and to say what is wrong with it."""
    block, replica = task.block, task.replica
    source, ranges, guard = block.source, block.source.ranges, block.source.generation
    near = engine.mapped(source.region)
    if near is None or not block.piece_bytes or block.checksums is not None:
        return None
    memory, is_there = near
    first, last = ranges.offset, ranges.offset + ranges.row_bytes
    words = _words(engine, source.region, guard)
    if not 0 <= first <= last <= memory.nbytes or words is None:
        return None
    started_s = time.monotonic()
    if guard is not None and int(words[guard.index]) != guard.value:
        return None
    payload = replica.segment.array[replica.offset : replica.offset + replica.length]
    np.copyto(payload[: ranges.row_bytes], memory[first:last])
    if (guard is not None and int(words[guard.index]) != guard.value) or not is_there():
        return None
    payload[ranges.row_bytes :] = np.frombuffer(block.tail, np.uint8)
    checksums = payload_checksums(payload.data, block.num_layers, block.piece_bytes)
    packed, seal_checksum = seal(
        Trailer(
            block.meta.hash, replica.version, replica.length, tuple(checksums), block.piece_bytes
        )
    )
    replica.packed_trailer[:] = packed
    return PullOutcome(task, seal_checksum, time.monotonic() - started_s)


def are_small(tasks: Sequence[PullTask]) -> bool:
    """Together: a loop does other things too."""
    return sum(task.replica.length for task in tasks) <= MAX_NEAR_BYTES


def _words(engine: TransferEngine, region: RegionRef, guard: Generation | None) -> ByteArray | None:
    """The source's table of generations; None where the one that is asked for cannot be seen from here."""
    if guard is None:
        return np.empty(0, np.uint8)
    table = RegionRef(
        address=region.address,
        region_id=guard.region_id,
        size_bytes=(guard.index + 1) * _WORD_BYTES,
    )
    found = engine.mapped(table)
    if found is None or not 0 <= guard.index < found[0].nbytes // _WORD_BYTES:
        return None
    return found[0][: found[0].nbytes // _WORD_BYTES * _WORD_BYTES].view("<u8")
