"""How fast a tier's blocks are found again at a start, beside a plain loop that reads one page a block."""

import time
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from statistics import median

from daemons.core.ids import BlockHash
from daemons.core.units import MIB
from daemons.protocol.block import BlockMeta
from daemons.store.lower import BlockRecord
from daemons.store.segment.seal import Trailer, layer_checksums, seal
from daemons.store.ssd.aligned import aligned_buffer, read_into
from daemons.store.ssd.files import ALIGN, DiskDirectory
from daemons.store.ssd.settings import MIN_BUCKETS, SsdSettings
from daemons.store.ssd.tier import SsdTier

_BUCKET_BYTES = 16 * MIB
_LENGTH = 3 * 1024
"""So that a record is one page: the most blocks for the least of disk."""
_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class OpenMeasure:
    """Medians over the rounds."""

    num_blocks: int
    tier_blocks_per_s: float
    plain_blocks_per_s: float


def measure_opening(path: Path, *, num_blocks: int, rounds: int = 5) -> OpenMeasure:
    """In a directory of its own, which it leaves empty. Takes a little more than a page of disk a block."""
    settings = SsdSettings(
        capacity_bytes=MIN_BUCKETS * _BUCKET_BYTES + 2 * num_blocks * ALIGN,
        bucket_bytes=_BUCKET_BYTES,
        read_workers=0,
    )
    _fill(SsdTier(DiskDirectory(path), settings), num_blocks)
    tier_rates, plain_rates = [], []
    for _ in range(rounds):
        started_s = time.perf_counter()
        tier = SsdTier(DiskDirectory(path), settings)
        tier_rates.append(tier.num_blocks / (time.perf_counter() - started_s))
        tier.close()
        plain_rates.append(_plain_rate(path, num_blocks))
    for file in path.iterdir():
        file.unlink()
    return OpenMeasure(num_blocks, median(tier_rates), median(plain_rates))


def _fill(tier: SsdTier, num_blocks: int) -> None:
    tier.start()
    payload = bytes(_LENGTH)
    checksums = tuple(layer_checksums(memoryview(payload), 2))
    waiting = []
    for number in range(num_blocks):
        key = BlockHash(blake2b(number.to_bytes(8, "little"), digest_size=16).digest())
        packed, checksum = seal(Trailer(key, 1, _LENGTH, checksums))
        meta = BlockMeta(
            hash=key, parent=key, namespace=b"", depth=0, num_tokens=64, model="measure"
        )
        record = BlockRecord(meta, _LENGTH, 2, 1, checksum, time.time())
        waiting.append(tier.put(record, memoryview(payload + packed)))
        if len(waiting) * _LENGTH >= tier.settings.batch_bytes:
            for done in waiting:
                done.result(_WAIT_S)
            waiting.clear()
    tier.flush(_WAIT_S)
    tier.close()


def _plain_rate(path: Path, num_blocks: int) -> float:
    directory = DiskDirectory(path)
    page, num_read = aligned_buffer(ALIGN), 0
    started_s = time.perf_counter()
    for name in directory.names():
        file = directory.open(name)
        for offset in range(0, file.size(), ALIGN):
            if num_read == num_blocks:
                break
            read_into(file, offset, page, is_direct=False)
            num_read += 1
        file.close()
    rate = num_read / (time.perf_counter() - started_s)
    directory.close()
    return rate
