"""Neighbouring blocks that lie in one region at one stride, pure: one copy a row, one granted range for all of them."""

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
