"""Numbers of many things of one kind as arrays, a row each: one call handles the rows of a whole message, and the
collector has nothing to look at.
"""

import struct
from array import array
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

NO_ROW: Final = -1
_MIN_GROWTH: Final = 1024
_GROWTH: Final = 16
"""A column grows by so great a part of itself: growing costs little, and so does what is not used yet."""

Rows = NDArray[np.intp]
Scalar = TypeVar("Scalar", bound=np.generic)


class Column(Generic[Scalar]):
    """`values` is another array after each `grow`: do not keep it."""

    def __init__(self, dtype: DTypeLike, fill: int = 0) -> None:
        self._dtype = np.dtype(dtype)
        self._one = struct.Struct(f"{self._dtype.itemsize}s")
        self._fill = fill
        self._buffer = bytearray()
        self.values: NDArray[Scalar] = np.empty(0, self._dtype)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def buffer(self) -> bytearray:
        """What `values` shows; another one after some `reach`es."""
        return self._buffer

    def bytes_of(self, row: int) -> bytes:
        """One value as it lies there: a tenth of what numpy takes for it."""
        value: bytes = self._one.unpack_from(self._buffer, row * self._one.size)[0]
        return value

    def reach(self, num_rows: int) -> None:
        """At least so many rows; new ones hold the fill."""
        before = len(self.values)
        if before >= num_rows:
            return
        after = max(num_rows, before + before // _GROWTH, before + _MIN_GROWTH)
        more = bytes((after - before) * self._dtype.itemsize)
        self.values = np.empty(0, self._dtype)  # a buffer that is looked at cannot grow
        try:
            self._buffer += more
        except BufferError:  # by somebody else, who keeps what was
            self._buffer = self._buffer + more
        self.values = np.frombuffer(self._buffer, self._dtype)
        if self._fill:
            self.values[before:] = np.array(self._fill, self._dtype)


class RowPool:
    """Which rows are free: those given back first, then the ones above all that were ever in use."""

    def __init__(self) -> None:
        self.num_used = 0
        """Rows that were ever in use; those above are blank."""
        self._free = array("q")

    def next(self, count: int) -> Rows:
        """What `take` will give."""
        reused = np.array(self._free[max(0, len(self._free) - count) :], np.intp)
        num_new = count - len(reused)
        if not num_new:
            return reused
        return np.concatenate([reused, np.arange(self.num_used, self.num_used + num_new)])

    def take(self, count: int) -> Rows:
        rows = self.next(count)
        start = max(0, len(self._free) - count)
        self.num_used += count - (len(self._free) - start)
        del self._free[start:]
        return rows

    def give(self, rows: Rows) -> None:
        self._free.frombytes(rows.astype(np.int64).tobytes())
