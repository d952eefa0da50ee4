"""A disk in memory that keeps what was synced and no more: the file interface with a plug to pull.

Data reaches it page by page; what was not synced survives a crash for each page alone, names in the order they were
made or removed. Writes must be aligned as O_DIRECT wants them. Faults are raised where a test arms them.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from daemons.store.ssd.aligned import address_of
from daemons.store.ssd.files import ALIGN


class Crashed(BaseException):
    """The plug was pulled in the middle of this call."""


@dataclass(eq=False)
class Inode:
    durable: bytearray = field(default_factory=bytearray)
    now: bytearray = field(default_factory=bytearray)

    def crash(self, random: Random) -> None:
        """Each page is the old or the new one; so is the length."""
        size = random.choice([len(self.durable), len(self.now)])
        pages = bytearray(max(size, len(self.durable), len(self.now)))
        pages[: len(self.durable)] = self.durable
        for at in range(0, len(self.now), ALIGN):
            if random.random() < 0.5:
                page = self.now[at : at + ALIGN]
                pages[at : at + len(page)] = page
        self.durable = pages[:size]
        self.now = bytearray(self.durable)


@dataclass(eq=False)
class CrashDisk:
    """The machine's disk; `directory()` is what a process opens on it."""

    capacity_bytes: int = 1 << 40
    inodes: dict[str, Inode] = field(default_factory=dict)
    durable_inodes: dict[str, Inode] = field(default_factory=dict)
    fault: Callable[[str], OSError | None] = lambda _: None
    """Asked before each call, by its name."""
    ops_left: int | None = None
    """Calls that change the disk until the plug is pulled."""
    num_ops: int = 0
    names_log: list[tuple[str, Inode | None]] = field(default_factory=list)
    random: Random = field(default_factory=lambda: Random(0))

    def directory(self) -> "CrashDirectory":
        return CrashDirectory(self)

    def crash(self) -> None:
        for name, inode in self.names_log[: self.random.randint(0, len(self.names_log))]:
            _apply(self.durable_inodes, name, inode)
        self.names_log.clear()
        for inode in dict.fromkeys([*self.inodes.values(), *self.durable_inodes.values()]):
            inode.crash(self.random)
        self.inodes = dict(self.durable_inodes)
        self.ops_left = None

    def change(self, name: str, inode: Inode | None) -> None:
        _apply(self.inodes, name, inode)
        self.names_log.append((name, inode))

    def before(self, call: str) -> None:
        error = self.fault(call)
        if error is not None:
            raise error

    def spend(self) -> bool:
        """Whether the plug is pulled in this call."""
        self.num_ops += 1
        if self.ops_left is None:
            return False
        self.ops_left -= 1
        return self.ops_left < 0

    def used_bytes(self) -> int:
        return sum(len(inode.now) for inode in self.inodes.values())


@dataclass(eq=False)
class CrashFile:
    disk: CrashDisk
    inode: Inode
    is_closed: bool = False

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        assert not self.is_closed
        self.disk.before("read")
        done = 0
        for buffer in buffers:
            part = self.inode.now[offset + done : offset + done + len(buffer)]
            buffer[: len(part)] = part
            done += len(part)
        return done

    def read_pieces(
        self, pieces: Sequence[memoryview], offset: int, on_piece: Callable[[int], object]
    ) -> None:
        starts = [offset + sum(map(len, pieces[:number])) for number in range(len(pieces))]
        for number in self.disk.random.sample(range(len(pieces)), len(pieces)):
            assert starts[number] % ALIGN == len(pieces[number]) % ALIGN == 0
            assert address_of(pieces[number]) % ALIGN == 0
            if self.preadv([pieces[number]], starts[number]) != len(pieces[number]):
                raise OSError(errno.EIO, "cut short")
            on_piece(number)

    def pwritev(self, buffers: Sequence[memoryview], offset: int) -> int:
        assert not self.is_closed
        assert all(len(b) % ALIGN == 0 and address_of(b) % ALIGN == 0 for b in buffers)
        assert offset % ALIGN == 0
        self.disk.before("write")
        data = b"".join(bytes(buffer) for buffer in buffers)
        is_cut = self.disk.spend()
        if is_cut:
            data = data[: self.disk.random.randint(0, len(data) // ALIGN) * ALIGN]
        grown = offset + len(data) - len(self.inode.now)
        if grown > 0:
            if self.disk.used_bytes() + grown > self.disk.capacity_bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.inode.now += bytes(grown)
        self.inode.now[offset : offset + len(data)] = data
        if is_cut:
            raise Crashed
        return len(data)

    def sync(self) -> None:
        self.disk.before("sync")
        if self.disk.spend():
            raise Crashed
        self.inode.durable = bytearray(self.inode.now)

    def reserve(self, num_bytes: int) -> None:
        self.disk.before("reserve")
        if self.disk.used_bytes() + num_bytes - len(self.inode.now) > self.disk.capacity_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.disk.spend():
            raise Crashed
        self.inode.now += bytes(num_bytes - len(self.inode.now))

    def truncate(self, num_bytes: int) -> None:
        self.disk.before("truncate")
        if self.disk.spend():
            raise Crashed
        del self.inode.now[num_bytes:]

    def size(self) -> int:
        return len(self.inode.now)

    def close(self) -> None:
        assert not self.is_closed, "closed twice"
        self.is_closed = True


@dataclass(eq=False)
class CrashDirectory:
    disk: CrashDisk
    is_direct: bool = True
    is_closed: bool = False

    def names(self) -> list[str]:
        return list(self.disk.inodes)

    def create(self, name: str) -> CrashFile:
        self.disk.before("create")
        assert name not in self.disk.inodes
        if self.disk.spend():
            raise Crashed
        inode = Inode()
        self.disk.change(name, inode)
        return CrashFile(self.disk, inode)

    def open(self, name: str) -> CrashFile:
        self.disk.before("open")
        return CrashFile(self.disk, self.disk.inodes[name])

    def free_bytes(self) -> int:
        return self.disk.capacity_bytes - sum(len(i.now) for i in self.disk.inodes.values())

    def unlink(self, name: str) -> None:
        self.disk.before("unlink")
        if self.disk.spend():
            raise Crashed
        self.disk.change(name, None)

    def sync(self) -> None:
        self.disk.before("sync")
        if self.disk.spend():
            raise Crashed
        for name, inode in self.disk.names_log:
            _apply(self.disk.durable_inodes, name, inode)
        self.disk.names_log.clear()

    def close(self) -> None:
        self.is_closed = True


def _apply(names: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


def aligned_copy(data: bytes, shift: int = 0) -> memoryview:
    """In memory whose address is `shift` above a page's."""
    memory = np.zeros(len(data) + 2 * ALIGN, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGN + shift
    view = memoryview(memory)[start : start + len(data)]
    view[:] = data
    return view
