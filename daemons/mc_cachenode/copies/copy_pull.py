"""What a copy worker does to one block that a peer has: read its slot as it is, verify all of it against the seal.

Runs on worker threads and touches only the slot it was given.
"""

import logging
import time
from dataclasses import dataclass
from typing import Final

from daemons.core.errors import McError
from daemons.core.ids import short
from daemons.core.units import MIB
from daemons.mc_cachenode.replica import Replica
from daemons.protocol.replication import CopyOrder
from daemons.store.segment.seal import BadSeal, parse_trailer, payload_checksums
from daemons.transfer import Read, ReadBatch, TransferEngine, contiguous

log = logging.getLogger(__name__)

STALL_S: Final = 2.0
"""A peer that is silent for so long is given up: the master names another one."""

_READ_BYTES: Final = 8 * MIB


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """`why` None: payload and trailer are in the slot, and true. `is_bad`: they came, and were not."""

    order: CopyOrder
    replica: Replica
    seconds: float
    why: str | None = None
    is_bad: bool = False


def pull_copy(
    engine: TransferEngine, order: CopyOrder, replica: Replica, timeout_s: float
) -> CopyOutcome:
    """Never raises: every failure is an outcome."""
    started_s = time.monotonic()
    why, is_bad = None, False
    try:
        _read(engine, order, replica, timeout_s)
        _verify(order, replica)
    except McError as error:
        why, is_bad = error.message, isinstance(error, BadSeal)
    except Exception as error:
        log.exception("copy failed block=%s", short(order.meta.hash))
        why = f"internal error: {type(error).__name__}; see the log of this node"
    return CopyOutcome(order, replica, time.monotonic() - started_s, why, is_bad)


def _read(engine: TransferEngine, order: CopyOrder, replica: Replica, timeout_s: float) -> None:
    source = order.source
    num_bytes = source.length + source.trailer_bytes
    reads = [
        Read.into(
            contiguous(source.offset + start, min(_READ_BYTES, num_bytes - start)),
            replica.segment.array,
            replica.offset + start,
        )
        for start in range(0, num_bytes, _READ_BYTES)
    ]
    engine.run(ReadBatch(region=source.region, reads=reads, timeout_s=timeout_s, stall_s=STALL_S))


def _verify(order: CopyOrder, replica: Replica) -> None:
    """Raises BadSeal."""
    source = order.source
    trailer = parse_trailer(replica.packed_trailer, source.seal_checksum, order.meta.hash)
    shape = (trailer.length, trailer.num_layers, trailer.version)
    if shape != (replica.length, replica.num_layers, replica.version):
        raise BadSeal("the trailer is of a block of another shape or version")
    found = payload_checksums(replica.payload, replica.num_layers, trailer.piece_bytes)
    if list(trailer.checksums) != found:
        raise BadSeal("the bytes are not those that were sealed")
