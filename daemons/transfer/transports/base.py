"""What a transport is: it moves bytes between local memory and a peer's region and raises unless every byte is right.

A READ never reports success when the source's generation changed, whichever transport carried it; a WRITE never
before the bytes can be read at the target.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol, TypeGuard

import numpy as np

from daemons.core.errors import TransferError, Unavailable
from daemons.core.ids import short
from daemons.protocol.segment import DataAddress, Generation, Grant, RegionRef, Strided
from daemons.transfer.device_memory import DeviceMemory, LocalMemory
from daemons.transfer.strided import ByteArray, check_within, contiguous, length_of


class Unreachable(Unavailable):
    """This transport has no path to the peer and moved nothing: the next one may try."""


class NoTurn(Unavailable):
    """The time went by while other batches of this process had all connections to the peer: it was not asked."""


class StaleEpoch(TransferError):
    """The descriptor is of an earlier life of the peer."""


class StaleGeneration(TransferError):
    """The owner reused the source before or while it was read; the bytes are not usable."""


class Cancelled(TransferError):
    """`Handle.cancel` was called before the transfer had ended, or its engine closed before it began."""


class Flag(Protocol):
    """A threading.Event, or several."""

    def is_set(self) -> bool: ...


class ClosingPath(Protocol):
    """A connection that carried a WRITE which was given up; its end is the end of the WRITE."""

    def wait_closed(self, timeout_s: float) -> bool:
        """Whether the target closed its side too, so that nothing can land any more."""
        ...


class NotOver(Unavailable):
    """A WRITE failed or was cancelled but the target may still land it: it is over when `path` is closed.

    The local memory and the target range must not be used for anything else before that.
    """

    def __init__(self, message: str, path: ClosingPath) -> None:
        super().__init__(message)
        self.path = path


class Read(NamedTuple):
    """Remote ranges into local memory; equal lengths, any two shapes. A tuple, as there are thousands a second."""

    remote: Strided
    local: LocalMemory
    target: Strided

    @classmethod
    def into(cls, remote: Strided, local: LocalMemory, offset: int = 0) -> "Read":
        """The rows one behind the other at `offset` of `local`."""
        return cls(remote, local, contiguous(offset, remote.length))


class Write(NamedTuple):
    """Local ranges into a peer's region; equal lengths, any two shapes."""

    local: LocalMemory
    source: Strided
    remote: Strided

    @classmethod
    def at(cls, remote_offset: int, local: LocalMemory) -> "Write":
        """All of `local` in one run."""
        return cls(local, contiguous(0, local.nbytes), contiguous(remote_offset, local.nbytes))


class Batch:
    """What READ and WRITE batches share."""

    __slots__ = ()
    region: RegionRef
    timeout_s: float
    deadline_s: float
    cancelled: Flag | None
    progress: Callable[[int], None] | None
    stall_s: float | None

    def check_stall(self, last_progress_s: float) -> None:
        """Called when nothing moved for a tick; raises where the path is to be given up before the deadline."""
        self.remaining_s()
        if self.stall_s is not None and time.monotonic() - last_progress_s > self.stall_s:
            raise TimeoutError(f"not a byte for {self.stall_s:g} s")

    def remaining_s(self) -> float:
        """Time left; raises when there is none or the batch was cancelled."""
        if self.cancelled is not None and self.cancelled.is_set():
            raise Cancelled("the transfer was cancelled")
        remaining = self.deadline_s - time.monotonic()
        if remaining <= 0:
            raise Unavailable(
                f"{describe(self.region.address)} did not deliver within {self.timeout_s:g} s"
            )
        return remaining

    def patience_s(self) -> float:
        """How long to wait for a connection or a first answer; raises as `remaining_s`."""
        remaining_s = self.remaining_s()
        return remaining_s if self.stall_s is None else min(remaining_s, self.stall_s)

    def _check_region(self, generation: Generation | None) -> None:
        numbers = [self.region.address.epoch, self.region.region_id]
        if generation is not None:
            numbers += [generation.region_id, generation.index]
        if min(numbers) < 0 or max(numbers) >= 1 << 64 or self.region.size_bytes >= 1 << 63:
            raise TransferError("a descriptor has a number out of range")


@dataclass(slots=True)
class ReadBatch(Batch):
    """READs of one region that succeed or fail together; done in order when there is an `on_read`.

    `on_read(i)` is called after the bytes of read i are in place and before the generation is checked again:
    a place to hash them while they are in the cache, not to trust them. `progress(i)` says the same, in any order.
    `notify` is delivered to the owner once all bytes have arrived here.
    """

    region: RegionRef
    reads: Sequence[Read]
    generation: Generation | None = None
    timeout_s: float = 5.0
    on_read: Callable[[int], None] | None = None
    cancelled: Flag | None = None
    capability: Grant | None = None
    notify: bytes | None = None
    progress: Callable[[int], None] | None = None
    stall_s: float | None = None
    """A path on which nothing moves for so long has failed; None: only the deadline counts."""
    deadline_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline_s = time.monotonic() + self.timeout_s

    @property
    def length(self) -> int:
        return length_of([read.remote for read in self.reads])

    def check(self) -> None:
        """Refuse ranges outside the region or the local memory before anything moves."""
        self._check_region(self.generation)
        size_bytes = self.region.size_bytes
        before: LocalMemory | None = None
        for remote, local, target in self.reads:
            if local is not before:
                before = _check_flat(local)
            check_within(remote, size_bytes, "the region")
            check_within(target, local.nbytes, "the local memory")
            length = remote.row_bytes * remote.num_rows
            if length != target.row_bytes * target.num_rows:
                raise TransferError(f"remote {length} and local {target.length} bytes differ")
            if not local.flags.writeable:
                raise TransferError("the local memory of a READ must be writable")

    def finish(self, index: int) -> None:
        if self.on_read is not None:
            self.on_read(index)
        if self.progress is not None:
            self.progress(index)

    def check_generation(self, word: int) -> None:
        if self.generation is not None and word != self.generation.value:
            raise StaleGeneration(
                f"source in region {self.region.region_id} of {describe(self.region.address)} was reused "
                f"(generation {word}, expected {self.generation.value})"
            )


@dataclass(slots=True)
class WriteBatch(Batch):
    """WRITEs into one region that the owner registered for it. When it fails some of them may have landed.

    Those of one batch may land at the same time: where they overlap any of them wins.

    `notify` is delivered to the owner after all bytes are readable there.
    """

    region: RegionRef
    writes: Sequence[Write]
    timeout_s: float = 5.0
    cancelled: Flag | None = None
    capability: Grant | None = None
    notify: bytes | None = None
    progress: Callable[[int], None] | None = None
    stall_s: float | None = None
    """A path on which nothing moves for so long has failed; None: only the deadline counts."""
    deadline_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline_s = time.monotonic() + self.timeout_s

    @property
    def length(self) -> int:
        return length_of([write.remote for write in self.writes])

    def check(self) -> None:
        """Refuse ranges outside the region or the local memory before anything moves."""
        self._check_region(None)
        size_bytes = self.region.size_bytes
        before: LocalMemory | None = None
        for local, source, remote in self.writes:
            if local is not before:
                before = _check_flat(local)
            check_within(remote, size_bytes, "the region")
            check_within(source, local.nbytes, "the local memory")
            length = remote.row_bytes * remote.num_rows
            if length != source.row_bytes * source.num_rows:
                raise TransferError(f"local {source.length} and remote {length} bytes differ")

    def finish(self, index: int) -> None:
        if self.progress is not None:
            self.progress(index)


def is_flat(memory: object) -> TypeGuard[ByteArray]:
    """Whether offsets into this memory of the host are bytes, as they are nowhere else but in a flat array of them."""
    return (
        isinstance(memory, np.ndarray)
        and memory.dtype.char == "B"
        and memory.ndim == 1
        and memory.flags.c_contiguous
    )


def _check_flat(memory: LocalMemory) -> LocalMemory:
    if not isinstance(memory, DeviceMemory) and not is_flat(memory):
        raise TransferError(
            "local memory must be a flat array of bytes: give as_bytes(it), or as_memory(it) of a tensor on a GPU"
        )
    return memory


class Transport(Protocol):
    """One way to move bytes. Thread safe; many batches may run at once, each in its caller's thread.

    Every method runs a batch that was checked. What fails before anything moved because there is no path raises
    Unreachable.
    """

    scheme: ClassVar[str]

    def reaches(self, address: DataAddress) -> bool:
        """Whether it is worth a try; must not block."""
        ...

    def read(self, batch: ReadBatch) -> None:
        """Local memory is not touched after it returns."""
        ...

    def write(self, batch: WriteBatch) -> None:
        """On return the bytes are readable at the target. Raises NotOver when they may still land later."""
        ...

    def notify(self, batch: ReadBatch | WriteBatch, message: bytes) -> None:
        """Put a message into the owner's queue; called when the batch has ended well."""
        ...

    def close(self) -> None: ...


def describe(address: DataAddress) -> str:
    """Short name of a peer for messages."""
    return f"{address.tcp or address.unix_path or address.rdma}/{short(f'{address.epoch:x}')}"
