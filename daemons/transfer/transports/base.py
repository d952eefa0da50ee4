"""What a transport is: it fills local memory from a peer's region and raises unless every byte is right.

A READ never reports success when the source's generation changed, whichever transport carried it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from daemons.core.errors import TransferError, Unavailable
from daemons.core.ids import short
from daemons.protocol.segment import DataAddress, Generation, RegionRef, Strided
from daemons.transfer.strided import ByteArray, check_within, contiguous


class Unreachable(Unavailable):
    """This transport has no path to the peer and moved nothing: the next one may try."""


class StaleEpoch(TransferError):
    """The descriptor is of an earlier life of the peer."""


class StaleGeneration(TransferError):
    """The owner reused the source before or while it was read; the bytes are not usable."""


class Read(NamedTuple):
    """Remote ranges into local memory; equal lengths, any two shapes. A tuple, as there are thousands a second."""

    remote: Strided
    local: ByteArray
    target: Strided

    @classmethod
    def into(cls, remote: Strided, local: ByteArray, offset: int = 0) -> "Read":
        """The rows one behind the other at `offset` of `local`."""
        return cls(remote, local, contiguous(offset, remote.length))


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """READs of one region that succeed or fail together; done in order.

    `on_read(i)` is called after the bytes of read i are in place and before the generation is checked again:
    a place to hash them while they are in the cache, not to trust them.
    """

    region: RegionRef
    reads: Sequence[Read]
    generation: Generation | None = None
    timeout_s: float = 5.0
    on_read: Callable[[int], None] | None = None
    cancelled: threading.Event | None = None
    deadline_s: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "deadline_s", time.monotonic() + self.timeout_s)

    def check(self) -> None:
        """Refuse ranges outside the region or the local memory before anything moves."""
        size_bytes = self.region.size_bytes
        numbers = [self.region.address.epoch, self.region.region_id]
        if self.generation is not None:
            numbers += [self.generation.region_id, self.generation.index]
        if min(numbers) < 0 or max(numbers) >= 1 << 64 or size_bytes >= 1 << 63:
            raise TransferError("a descriptor has a number out of range")
        for remote, local, target in self.reads:
            check_within(remote, size_bytes, "the region")
            check_within(target, local.nbytes, "the local memory")
            length = remote.row_bytes * remote.num_rows
            if length != target.row_bytes * target.num_rows:
                raise TransferError(f"remote {length} and local {target.length} bytes differ")
            if not local.flags.writeable:
                raise TransferError("the local memory of a READ must be writable")

    def remaining_s(self) -> float:
        """Time left; raises when there is none or the batch was cancelled."""
        if self.cancelled is not None and self.cancelled.is_set():
            raise TransferError("the transfer was cancelled")
        remaining = self.deadline_s - time.monotonic()
        if remaining <= 0:
            raise Unavailable(
                f"{describe(self.region.address)} did not deliver within {self.timeout_s:g} s"
            )
        return remaining

    def finish(self, index: int) -> None:
        if self.on_read is not None:
            self.on_read(index)

    def check_generation(self, word: int) -> None:
        if self.generation is not None and word != self.generation.value:
            raise StaleGeneration(
                f"source in region {self.region.region_id} of {describe(self.region.address)} was reused "
                f"(generation {word}, expected {self.generation.value})"
            )


class Transport(Protocol):
    """One way to move bytes. Thread safe; many READs may run at once."""

    scheme: ClassVar[str]

    def reaches(self, address: DataAddress) -> bool:
        """Whether it is worth a try; must not block."""
        ...

    def read(self, batch: ReadBatch) -> None:
        """Run a checked batch in the calling thread. Local memory is not touched after it returns."""
        ...

    def close(self) -> None: ...


def describe(address: DataAddress) -> str:
    """Short name of a peer for messages."""
    return f"{address.tcp or address.unix_path}/{short(f'{address.epoch:x}')}"
