"""Neighbouring blocks that lie in one region at one stride, pure: one copy a row, one granted range for all of them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import RegionRef, Strided


@dataclass(frozen=True, slots=True)
class BlockRun:
    """`first` is the index of its first block among the locations."""

    region: RegionRef
    first: int
    num_blocks: int
    offset: int
    stride: int

    def rows(self, start: int, row_bytes: int, num_blocks: int) -> Strided:
        """The bytes at `start` of each of the first `num_blocks` slots."""
        return Strided(
            offset=self.offset + start,
            row_bytes=row_bytes,
            num_rows=num_blocks,
            stride_bytes=self.stride if num_blocks > 1 else 0,
        )


def runs_of(locations: Sequence[BlockLocation]) -> Iterator[BlockRun]:
    """In order. The runs of the first few locations are the first runs, the last perhaps shorter."""
    start = 0
    while start < len(locations):
        region, offset = locations[start].region, locations[start].offset
        end, stride = start + 1, 0
        while end < len(locations) and locations[end].region == region:
            step = locations[end].offset - locations[end - 1].offset
            if (stride and step != stride) or step < locations[end].length:
                break
            stride, end = step, end + 1
        yield BlockRun(region, start, end - start, offset, stride)
        start = end


def in_memory(replicas: Sequence[Sequence[BlockLocation]]) -> list[BlockLocation]:
    """Of the replicas of many blocks those that can be granted: the first of each, then the second, and so on.

    Below DRAM nothing lies at the offset that is named, or somebody else's bytes.
    """
    ranks = itertools.zip_longest(*replicas)
    return [at for rank in ranks for at in rank if at is not None and at.tier == "dram"]
