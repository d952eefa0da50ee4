"""Transfers whose own side is memory of a GPU, piece by piece through pinned host memory.

A stage that a stopped target may still read from is not used again before that path is closed.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from daemons.protocol.segment import Strided
from daemons.transfer.device_memory import DeviceMemory, Stage, pieces_between
from daemons.transfer.slices import Slice
from daemons.transfer.strided import ByteArray, contiguous
from daemons.transfer.transports.base import (
    ClosingPath,
    NotOver,
    Read,
    ReadBatch,
    Write,
    WriteBatch,
)

_MAX_IDLE: Final = 8


class StagePool:
    """As many stages as are in use, and some for the next; pinning pages is slow. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Stage] = []
        self._lost: list[tuple[ClosingPath, Stage]] = []

    @contextmanager
    def stage(self, memory: DeviceMemory) -> Iterator[Stage]:
        """One for copies of this memory."""
        stage = self._take(memory)
        try:
            yield stage
        except NotOver as error:
            with self._lock:
                self._lost.append((error.path, stage))
            raise
        except BaseException:
            self._give_back(stage)
            raise
        self._give_back(stage)

    def _take(self, memory: DeviceMemory) -> Stage:
        with self._lock:
            lost, self._lost = self._lost, []
            for path, stage in lost:
                if path.wait_closed(0.0):
                    self._idle.append(stage)
                else:
                    self._lost.append((path, stage))
            for number, stage in enumerate(self._idle):
                if stage.driver is memory.driver and stage.device == memory.device:
                    return self._idle.pop(number)
        return Stage(memory.driver, memory.device)

    def _give_back(self, stage: Stage) -> None:
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(stage)
                return
        stage.free()


STAGES: Final = StagePool()
"""Of the process, as the devices are."""


def is_on_device(batch: ReadBatch | WriteBatch) -> bool:
    """Whether any of its local memory is on a GPU."""
    parts = batch.reads if isinstance(batch, ReadBatch) else batch.writes
    return any(isinstance(part.local, DeviceMemory) for part in parts)


def carry(batch: ReadBatch | WriteBatch, run: Callable[[ReadBatch | WriteBatch], None]) -> None:
    """The batch in pieces that `run` can carry, one after the other. Each READ checks the generation itself."""
    if isinstance(batch, ReadBatch):
        for index, read in enumerate(batch.reads):
            _carry_read(batch, read, run)
            batch.finish(index)
    else:
        for index, write in enumerate(batch.writes):
            _carry_write(batch, write, run)
            batch.finish(index)


def _carry_read(batch: ReadBatch, read: Read, run: Callable[[ReadBatch], None]) -> None:
    if not isinstance(read.local, DeviceMemory):
        run(_part_of_reads(batch, [read]))
        return
    for piece in pieces_between(read.remote, read.target):
        with STAGES.stage(read.local) as stage:
            run(_part_of_reads(batch, reads_of(piece, stage)))
            read.local.scatter(piece, stage)


def _carry_write(batch: WriteBatch, write: Write, run: Callable[[WriteBatch], None]) -> None:
    if not isinstance(write.local, DeviceMemory):
        run(_part_of_writes(batch, [write]))
        return
    for piece in pieces_between(write.remote, write.source):
        with STAGES.stage(write.local) as stage:
            write.local.gather(piece, stage)
            writes, at = [], 0
            for span in piece.spans:
                source = contiguous(at, span.length)
                writes.append(Write(stage.array, source, contiguous(span.remote, span.length)))
                at += span.length
            run(_part_of_writes(batch, writes))


def reads_of(piece: Slice, stage: Stage) -> list[Read]:
    """The piece's remote runs, one behind the other into the stage."""
    reads, at = [], 0
    for span in piece.spans:
        remote = contiguous(span.remote, span.length)
        reads.append(Read(remote, stage.array, contiguous(at, span.length)))
        at += span.length
    return reads


def read_device(memory: DeviceMemory, source: Strided, local: ByteArray, target: Strided) -> None:
    """Out of a GPU into host memory of this process."""
    for piece in pieces_between(target, source):
        with STAGES.stage(memory) as stage:
            memory.gather(piece, stage)
            for ours, its in zip(_runs_of(piece, local), _stage_runs(piece, stage), strict=True):
                np.copyto(ours, its)


def write_device(memory: DeviceMemory, target: Strided, local: ByteArray, source: Strided) -> None:
    """The reverse of `read_device`."""
    for piece in pieces_between(source, target):
        with STAGES.stage(memory) as stage:
            for ours, its in zip(_runs_of(piece, local), _stage_runs(piece, stage), strict=True):
                np.copyto(its, ours)
            memory.scatter(piece, stage)


def _runs_of(piece: Slice, local: ByteArray) -> Iterator[ByteArray]:
    return (local[span.remote : span.remote + span.length] for span in piece.spans)


def _stage_runs(piece: Slice, stage: Stage) -> Iterator[ByteArray]:
    at = 0
    for span in piece.spans:
        yield stage.array[at : at + span.length]
        at += span.length


def _part_of_reads(batch: ReadBatch, reads: list[Read]) -> ReadBatch:
    part = dataclasses.replace(batch, reads=reads, on_read=None, progress=None, notify=None)
    part.deadline_s = batch.deadline_s
    return part


def _part_of_writes(batch: WriteBatch, writes: list[Write]) -> WriteBatch:
    part = dataclasses.replace(batch, writes=writes, progress=None, notify=None)
    part.deadline_s = batch.deadline_s
    return part
