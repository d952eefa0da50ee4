"""Filling a pool beyond its DRAM, and reading it back from wherever it is."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from daemons.client.cluster import ClusterClient
from daemons.client.staging import staged
from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockFilter, Tier
from daemons.protocol.cache import FlushBlocksReply
from kit.pool import NUM_LAYERS, ROW, Pool, SourceMemory, read_all


def put_all(
    pool: Pool, source: SourceMemory, hashes: Sequence[BlockHash], step: int = 7, begin: int = 0
) -> None:
    """Those from `begin` on, as a prefill does, but again until there is room."""
    deadline_s = time.monotonic() + 30
    for first in range(begin, len(hashes), step):
        left = list(range(first, min(first + step, len(hashes))))
        while left:
            assert time.monotonic() < deadline_s, "no room"
            results = pool.put([source.block(index, list(hashes)) for index in left]).results
            left = [
                index
                for index, result in zip(left, results, strict=True)
                if result not in ("stored", "already_sealed")
            ]
            time.sleep(0.02 if left else 0)


def read_in_pieces(
    source: SourceMemory, pool: Pool, hashes: list[BlockHash], piece: int = 3
) -> np.ndarray:
    """Bytes `[layer][k|v][block][row]`, all verified. Looked up for each piece: what is staged pushes others out of
    DRAM once their leases are over.
    """
    arena = np.zeros((2 * NUM_LAYERS, len(hashes), ROW), np.uint8)
    for first in range(0, len(hashes), piece):
        wanted = pool.match(hashes)[first : first + piece]
        with staged(wanted, timeout_s=10) as here:
            num_good, read, bad = read_all(source.engine, here)
        assert (num_good, bad) == (len(wanted), []), f"at block {first}"
        arena[:, first : first + len(wanted)] = read.reshape(2 * NUM_LAYERS, len(wanted), ROW)
    return arena.reshape(-1)


def flush(cluster: ClusterClient, to: Tier = "ssd", *, evict: bool) -> FlushBlocksReply:
    """Until nothing is left."""
    deadline_s = time.monotonic() + 20
    while True:
        reply = cluster.flush_blocks(BlockFilter(), to=to, evict=evict)
        if reply.num_left == 0:
            return reply
        assert time.monotonic() < deadline_s, reply
        time.sleep(0.05)


def damage(path: Path) -> None:
    """A byte in the middle of every MiB of every bucket."""
    for bucket in path.rglob("*"):
        if bucket.is_file() and bucket.stat().st_size > 1 << 20:
            fd = os.open(bucket, os.O_RDWR)
            for offset in range(100_000, bucket.stat().st_size, 100_000):
                byte = os.pread(fd, 1, offset)
                os.pwrite(fd, bytes([byte[0] ^ 1 if byte else 1]), offset)
            os.close(fd)
