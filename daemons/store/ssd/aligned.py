"""Memory and transfers as O_DIRECT wants them: straight into the caller's memory wherever its alignment agrees with
the file's, over a bounce buffer only for the rest. No byte is touched by Python; every copy releases the GIL.
"""

import errno
import mmap
import threading
from collections.abc import Callable, Sequence

import numpy as np

from daemons.core.units import MIB
from daemons.store.ssd.files import ALIGN, BucketFile

_BOUNCE_BYTES = MIB
_MAX_BUFFERS = 512
"""Per call; the kernel's limit is 1024."""

_local = threading.local()


def round_up(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN) * ALIGN


def aligned_buffer(num_bytes: int) -> memoryview:
    """Zeroed memory, aligned and a multiple of ALIGN long; goes when nobody refers to it."""
    return memoryview(mmap.mmap(-1, max(round_up(num_bytes), ALIGN)))


def address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """A slice assignment would hold the GIL while it copies."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def read_into(file: BucketFile, offset: int, target: memoryview, *, is_direct: bool) -> None:
    """Fill `target` from `offset`. Raises OSError, also when the file is too short."""
    if not len(target):
        return
    if not is_direct:
        _read_all(file, [target], offset)
    elif (address_of(target) - offset) % ALIGN == 0:
        _read_congruent(file, offset, target)
    else:
        _read_bounced(file, offset, target)


def read_in_pieces(
    file: BucketFile,
    offset: int,
    target: memoryview,
    piece_bytes: int,
    on_arrival: Callable[[int, int], object],
) -> None:
    """As `read_into` with O_DIRECT from a page into memory on a page, several reads at once. `on_arrival` hears where
    what has arrived begins and ends. Raises OSError.
    """
    whole = len(target) // ALIGN * ALIGN
    starts = range(0, whole, piece_bytes)
    pieces = [target[start : min(start + piece_bytes, whole)] for start in starts]
    if whole < len(target):
        page = _bounce()[:ALIGN]
        pieces.append(page)

    def on_piece(number: int) -> None:
        start = starts[number] if number < len(starts) else whole
        if start == whole:
            target[whole:] = page[: len(target) - whole]  # so little that the GIL may be held
        on_arrival(start, min(start + len(pieces[number]), len(target)))

    file.read_pieces(pieces, offset, on_piece)


def write_all(file: BucketFile, buffers: Sequence[memoryview], offset: int) -> None:
    """All buffers one behind the other."""
    left = list(buffers)
    while left:
        written = file.pwritev(left[:_MAX_BUFFERS], offset)
        if written <= 0:
            raise OSError(errno.EIO, "nothing was written")
        offset += written
        left = _skip(left, written)


def _read_congruent(file: BucketFile, offset: int, target: memoryview) -> None:
    """The whole pages in the middle go where they belong; the ends go over a page each."""
    end = offset + len(target)
    first, last = round_up(offset), end // ALIGN * ALIGN
    if first > last:  # within one page
        _read_bounced(file, offset, target)
        return
    pages = _bounce()
    buffers = []
    if first > offset:
        buffers.append(pages[:ALIGN])
    if last > first:
        buffers.append(target[first - offset : last - offset])
    if end > last:
        buffers.append(pages[ALIGN : 2 * ALIGN])
    _read_all(file, buffers, offset // ALIGN * ALIGN)
    # So little that the GIL may be held.
    if first > offset:
        target[: first - offset] = pages[ALIGN - (first - offset) : ALIGN]
    if end > last:
        target[last - offset :] = pages[ALIGN : ALIGN + end - last]


def _read_bounced(file: BucketFile, offset: int, target: memoryview) -> None:
    bounce = _bounce()
    end, done = offset + len(target), 0
    while done < len(target):
        start = (offset + done) // ALIGN * ALIGN
        length = min(_BOUNCE_BYTES, round_up(end) - start)
        _read_all(file, [bounce[:length]], start)
        skip = offset + done - start
        part = min(length - skip, len(target) - done)
        copy_bytes(target[done : done + part], bounce[skip : skip + part])
        done += part


def _read_all(file: BucketFile, buffers: list[memoryview], offset: int) -> None:
    while buffers:
        got = file.preadv(buffers, offset)
        if got <= 0:
            raise OSError(errno.EIO, f"the file ends at {offset}; it was cut short")
        offset += got
        buffers = _skip(buffers, got)


def _skip(buffers: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of buffers of which so many bytes are done."""
    for index, buffer in enumerate(buffers):
        if num_bytes < len(buffer):
            return [buffer[num_bytes:], *buffers[index + 1 :]]
        num_bytes -= len(buffer)
    return []


def _bounce() -> memoryview:
    """One buffer per thread, as reads run side by side."""
    buffer: memoryview | None = getattr(_local, "buffer", None)
    if buffer is None:
        buffer = _local.buffer = aligned_buffer(_BOUNCE_BYTES)
    return buffer
