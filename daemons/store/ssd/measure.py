"""How fast blocks come from the SSD, verified, beside a plain loop of preadv over the same sizes in the same run."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from statistics import median

import numpy as np

from daemons.core.ids import BlockHash
from daemons.core.units import MIB
from daemons.protocol.block import BlockMeta
from daemons.store.lower import BlockRecord
from daemons.store.segment.seal import Trailer, layer_checksums, seal
from daemons.store.ssd.aligned import address_of, aligned_buffer, read_into, round_up, write_all
from daemons.store.ssd.files import ALIGN, BucketFile, DiskDirectory
from daemons.store.ssd.settings import MIN_BUCKETS, SsdSettings
from daemons.store.ssd.tier import SsdTier

_PLAIN_NAME = "plain.tmp"
_LAYERS = 16
_WAIT_S = 120.0
_READS_PER_PART = 8
"""A thread's, before the other side has its turn: what else the machine does hits both."""


@dataclass(frozen=True, slots=True)
class ReadMeasure:
    """Medians over many short turns; both sides read with as many threads."""

    block_bytes: int
    num_blocks: int
    num_threads: int
    is_direct: bool
    tier_bytes_per_s: float
    plain_bytes_per_s: float
    put_bytes_per_s: float

    @property
    def ratio(self) -> float:
        return self.tier_bytes_per_s / self.plain_bytes_per_s


def measure_reads(
    path: Path, *, block_bytes: int, total_bytes: int, num_threads: int = 1, rounds: int = 5
) -> ReadMeasure:
    """In a directory of its own, which it leaves empty. Takes about 2.5 times `total_bytes` of disk."""
    length = block_bytes // (2 * _LAYERS) * (2 * _LAYERS)
    part = _READS_PER_PART * num_threads
    num_blocks = max(1, total_bytes // block_bytes // part) * part
    directory = DiskDirectory(path)
    settings = SsdSettings(
        capacity_bytes=2 * MIN_BUCKETS * max(total_bytes, 64 * MIB) // MIN_BUCKETS + 256 * MIB,
        bucket_bytes=round_up(max(4 * block_bytes, 32 * MIB)),
        read_workers=0,
    )
    tier = SsdTier(directory, settings)
    tier.start()
    try:
        started_s = time.perf_counter()
        keys = _fill(tier, num_blocks, length)
        put_s = time.perf_counter() - started_s
        plain = _plain_file(directory, num_blocks, length)
        targets = [aligned_buffer(length + ALIGN) for _ in range(num_threads)]
        tier_rates, plain_rates = [], []
        tier_reads, plain_reads = _tier_reads(tier, keys), _plain_reads(plain, num_blocks)
        with ThreadPoolExecutor(num_threads) as pool:
            for start in [*range(0, num_blocks, part)] * rounds:
                end = start + part
                tier_rates.append(_rate(pool, targets, length, tier_reads[start:end]))
                plain_rates.append(_rate(pool, targets, length, plain_reads[start:end]))
        plain.close()
        return ReadMeasure(
            block_bytes=length,
            num_blocks=num_blocks,
            num_threads=num_threads,
            is_direct=directory.is_direct,
            tier_bytes_per_s=median(tier_rates),
            plain_bytes_per_s=median(plain_rates),
            put_bytes_per_s=num_blocks * length / put_s,
        )
    finally:
        tier.clear().result(_WAIT_S)
        tier.close()
        for file in path.iterdir():
            file.unlink()


Reads = list[Callable[[memoryview], object]]


def _rate(pool: ThreadPoolExecutor, targets: list[memoryview], length: int, reads: Reads) -> float:
    def run(index: int) -> None:
        for read in reads[index :: len(targets)]:
            read(targets[index])

    started_s = time.perf_counter()
    for done in [pool.submit(run, index) for index in range(len(targets))]:
        done.result()
    return len(reads) * length / (time.perf_counter() - started_s)


def _tier_reads(tier: SsdTier, keys: list[BlockHash]) -> Reads:
    return [lambda target, key=key: tier.read(key, target) for key in keys]  # type: ignore[misc]


def _plain_reads(file: BucketFile, num_blocks: int) -> Reads:
    size = file.size() // num_blocks

    def read(offset: int, target: memoryview) -> None:
        part = target[:size]
        assert address_of(part) % ALIGN == 0
        read_into(file, offset, part, is_direct=False)

    return [
        lambda target, offset=index * size: read(offset, target)  # type: ignore[misc]
        for index in range(num_blocks)
    ]


def _fill(tier: SsdTier, num_blocks: int, length: int) -> list[BlockHash]:
    payload = aligned_buffer(length + ALIGN)
    np.frombuffer(payload, np.uint8)[:] = np.random.default_rng(1).integers(
        0, 256, len(payload), np.uint8
    )
    checksums = tuple(layer_checksums(payload[:length], _LAYERS))
    keys = []
    waiting: list[Future[bool]] = []
    for index in range(num_blocks):
        key = BlockHash(blake2b(index.to_bytes(8, "little"), digest_size=16).digest())
        packed, checksum = seal(Trailer(key, 1, length, checksums))
        stored = aligned_buffer(length + len(packed))
        np.copyto(
            np.frombuffer(stored[:length], np.uint8), np.frombuffer(payload[:length], np.uint8)
        )
        stored[length : length + len(packed)] = packed
        meta = BlockMeta(
            hash=key, parent=key, namespace=b"", depth=0, num_tokens=64, model="measure"
        )
        record = BlockRecord(meta, length, _LAYERS, 1, checksum, time.time())
        waiting.append(tier.put(record, stored))
        keys.append(key)
        if len(waiting) * length >= tier.settings.batch_bytes:
            waiting.pop(0).result(_WAIT_S)
    for done in waiting:
        done.result(_WAIT_S)
    return keys


def _plain_file(directory: DiskDirectory, num_blocks: int, length: int) -> BucketFile:
    """The same bytes and sizes, one behind the other."""
    file = directory.create(_PLAIN_NAME)
    size = round_up(length)
    data = aligned_buffer(size)
    data[:length] = os.urandom(length)
    for index in range(num_blocks):
        write_all(file, [data], index * size)
    file.sync()
    return file
