"""Requests of one batch over one stream: as many as its ranges need, each asked and answered before the next."""

import itertools
from collections.abc import Iterator

import numpy as np

from daemons.core.errors import ProtocolError, TransferError
from daemons.protocol.segment import Grant, RegionRef, Strided
from daemons.transfer.capability import encode_grant
from daemons.transfer.device_memory import on_host
from daemons.transfer.strided import contiguous, copy, iovecs_of, joined, length_of
from daemons.transfer.transports import exchange, wire
from daemons.transfer.transports.base import ReadBatch, WriteBatch, describe
from daemons.transfer.transports.exchange import Stream

_MAX_INLINE_ROWS = 256
_FINISHED_BYTES = 256 << 10
"""Reads that report are received so many bytes at a time at least, and are in the CPU's cache when they do."""


def parts_of(count: int) -> Iterator[range]:
    """The reads or writes of each request; one without any where there are none."""
    for start in range(0, max(count, 1), wire.MAX_RANGES):
        yield range(start, min(start + wire.MAX_RANGES, count))


def encode(
    op: wire.Op,
    region: RegionRef,
    ranges: tuple[Strided, ...],
    capability: Grant | None,
    generation: tuple[int, int] | None = None,
    *,
    body: bytes = b"",
) -> bytes:
    return wire.encode_request(
        wire.Request(
            op,
            region.address.epoch,
            region.region_id,
            generation,
            ranges,
            b"" if capability is None else encode_grant(capability),
            body,
        )
    )


def encode_write(op: wire.Op, batch: WriteBatch, part: range, body: bytes) -> bytes:
    ranges = [write.remote for write in batch.writes[part.start : part.stop]]
    if op != wire.Op.PULL:  # whose body names a source for each
        ranges = _named(ranges, batch.capability)
    return encode(op, batch.region, tuple(ranges), batch.capability, body=body)


def _named(ranges: list[Strided], capability: Grant | None) -> list[Strided]:
    """Fewer to pack and to parse where some are neighbours. What was granted is asked for as it was granted."""
    return ranges if capability is not None else joined(ranges)


def read_part(stream: Stream, batch: ReadBatch, part: range) -> None:
    """On return its bytes are in place, and the generation was unchanged before and after."""
    reads = batch.reads[part.start : part.stop]
    if not reads:
        return
    ranges = tuple(_named([read.remote for read in reads], batch.capability))
    guard = batch.generation
    word = None if guard is None else (guard.region_id, guard.index)
    request = encode(wire.Op.READ, batch.region, ranges, batch.capability, word)
    length = length_of(ranges)
    if length <= wire.MAX_INLINE and sum(r.num_rows for r in ranges) <= _MAX_INLINE_ROWS:
        payload, before, after = exchange.ask_small(stream, request, length, batch)
        batch.check_generation(before)
        batch.check_generation(after)
        _scatter(payload, batch, part)
        return
    announced, before = exchange.ask(stream, request, batch)
    if length != announced:
        raise TransferError(
            f"{describe(batch.region.address)} announced {announced} bytes, a wrong number"
        )
    batch.check_generation(before)
    trailer = stream.scratch[: wire.TRAILER.size]
    if batch.on_read is None and batch.progress is None:
        vectors = iovecs_of([(on_host(local).data, target) for _, local, target in reads])
        exchange.fill(stream.sock, itertools.chain(vectors, [trailer]), batch)
    else:
        for group, windows in list(_finished_together(batch, part)):
            for window in windows:
                exchange.fill_window(stream.sock, window, batch)
            for index in group:
                batch.finish(index)
        exchange.fill(stream.sock, iter([trailer]), batch)
    magic, after = wire.TRAILER.unpack(trailer)
    if magic != wire.MAGIC:
        raise ProtocolError(f"{describe(batch.region.address)} lost step on the data connection")
    batch.check_generation(after)


def _finished_together(
    batch: ReadBatch, part: range
) -> Iterator[tuple[range, list[list[memoryview]]]]:
    """Which reads report after which calls. Short ones share a call: it costs more than their bytes."""
    start, num_bytes = part.start, 0
    for index in part:
        num_bytes += batch.reads[index].remote.length
        if num_bytes < _FINISHED_BYTES and index + 1 < part.stop:
            continue
        group = range(start, index + 1)
        reads = [batch.reads[number] for number in group]
        vectors = iovecs_of([(on_host(local).data, target) for _, local, target in reads])
        yield group, list(wire.windows(vectors))
        start, num_bytes = index + 1, 0


def _scatter(payload: memoryview, batch: ReadBatch, part: range) -> None:
    start = 0
    for index in part:
        _, memory, target = batch.reads[index]
        local = on_host(memory)
        length = target.row_bytes * target.num_rows
        if target.num_rows == 1:
            local.data[target.offset : target.offset + length] = payload[start : start + length]
        else:
            source = np.frombuffer(payload, np.uint8)
            copy(source, contiguous(start, length), local, target)
        start += length
        batch.finish(index)


def write_part(stream: Stream, batch: WriteBatch, part: range) -> None:
    """On return its bytes are readable at the target."""
    writes = batch.writes[part.start : part.stop]
    if not writes:
        return
    vectors = iovecs_of([(on_host(local).data, source) for local, source, _ in writes])
    if length_of([remote for _, _, remote in writes]) <= wire.MAX_EAGER:
        request = memoryview(encode_write(wire.Op.WRITE, batch, part, b""))
        exchange.send(stream.sock, itertools.chain([request], vectors), batch)
        exchange.answer(stream, batch)
        return
    exchange.ask(stream, encode_write(wire.Op.STREAM, batch, part, b""), batch)
    exchange.send(stream.sock, vectors, batch)
    exchange.answer(stream, batch)
