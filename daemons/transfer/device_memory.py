"""Memory of a GPU. The CPU never touches it: it is registered with NICs, or copied through pinned host memory."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar, Final

import numpy as np

from daemons.core.errors import TransferError
from daemons.core.units import MIB
from daemons.protocol.segment import Strided
from daemons.transfer.cuda import Driver
from daemons.transfer.slices import Slice, Span, cut, spans_of
from daemons.transfer.strided import ByteArray, contiguous

_PIECE_BYTES: Final = 2 * MIB
STAGE_BYTES: Final = 3 * _PIECE_BYTES
"""A piece that `cut` makes has at most three times the size it aims at."""

_MAX_SPANS: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """Stands where an array of bytes would: it has a length, but no bytes that Python may look at."""

    flags: ClassVar = SimpleNamespace(writeable=True)
    driver: Driver
    device: int
    address: int
    nbytes: int
    owner: object
    """Keeps the memory alive."""

    def gather(self, piece: Slice, stage: "Stage") -> None:
        """The piece's spans one behind the other into the stage."""
        at = stage.address
        for span in piece.spans:
            self.driver.copy_to_host(self.device, at, self.address + span.local, span.length)
            at += span.length

    def scatter(self, piece: Slice, stage: "Stage") -> None:
        """The reverse of `gather`."""
        at = stage.address
        for span in piece.spans:
            self.driver.copy_to_device(self.device, self.address + span.local, at, span.length)
            at += span.length


LocalMemory = ByteArray | DeviceMemory
"""What one's own side of a transfer may be."""


class Stage:
    """Pinned host memory of STAGE_BYTES, until `free`."""

    def __init__(self, driver: Driver, device: int) -> None:
        self.driver = driver
        self.device = device
        self.address = driver.allocate_pinned(device, STAGE_BYTES)
        pages = (ctypes.c_uint8 * STAGE_BYTES).from_address(self.address)
        self.array: ByteArray = np.frombuffer(memoryview(pages).cast("B"), np.uint8)

    def first(self, length: int) -> memoryview:
        return self.array.data[:length]

    def free(self) -> None:
        self.driver.free_pinned(self.device, self.address)


def address_of(memory: LocalMemory) -> int:
    if isinstance(memory, DeviceMemory):
        return memory.address
    # A quarter of the time of array.ctypes.data, and once per read.
    return int(memory.__array_interface__["data"][0])


def on_host(memory: LocalMemory) -> ByteArray:
    """For whoever can only copy what the CPU sees; device memory was staged before it comes here."""
    if isinstance(memory, DeviceMemory):
        raise TransferError("memory of a GPU cannot be copied here; it needs staging")
    return memory


def pieces_of(all_ranges: Sequence[Strided]) -> list[Slice]:
    """Ranges of a region as pieces that fit a stage, in the order of the stream; `local` is in the region."""
    spans: list[Span] = []
    position = 0
    for ranges in all_ranges:
        spans += spans_of(contiguous(position, ranges.length), ranges)
        position += ranges.length
    return cut(spans, _PIECE_BYTES, max_spans=_MAX_SPANS)


def pieces_between(remote: Strided, local: Strided) -> list[Slice]:
    """The same for a transfer between two shapes."""
    return cut(spans_of(remote, local), _PIECE_BYTES, max_spans=_MAX_SPANS)
