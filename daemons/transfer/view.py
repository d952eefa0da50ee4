"""Zero-copy looks at a peer's region on this host. The owner keeps the memory as long as the view is open."""

import weakref
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from daemons.core.errors import TransferError
from daemons.protocol.segment import Strided
from daemons.transfer.strided import ByteArray, check_within


class View:
    """Read-only arrays of (rows, row bytes), one for each range. They must not be used after `close`.

    The pin ends with `close`, with this process, or with the owner's. Bytes that the owner rewrites meanwhile change
    under the reader: a generation or a checksum tells.
    """

    def __init__(
        self, memory: ByteArray, ranges: Sequence[Strided], unpin: Callable[[], None]
    ) -> None:
        self.arrays: list[NDArray[np.uint8]] = [_rows(memory, r) for r in ranges]
        self._finalize = weakref.finalize(self, unpin)

    @property
    def is_open(self) -> bool:
        return self._finalize.alive

    def close(self) -> None:
        self.arrays = []
        self._finalize()

    def __enter__(self) -> "View":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def check_ranges(ranges: Sequence[Strided], size_bytes: int) -> None:
    if not ranges:
        raise TransferError("a view needs a range")
    for each in ranges:
        check_within(each, size_bytes, "the region")


def _rows(memory: ByteArray, ranges: Strided) -> NDArray[np.uint8]:
    rows: NDArray[np.uint8] = np.ndarray(
        (ranges.num_rows, ranges.row_bytes),
        np.uint8,
        memory,
        ranges.offset,
        (ranges.stride_bytes, 1),
    )
    rows.flags.writeable = False
    return rows
