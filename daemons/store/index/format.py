"""What a node's index file holds: a header, then records of what was sealed, freed, cleared, each with its checksums.

Pure: bytes in, records out. A record that does not verify is passed over where its length can be trusted; where it
cannot, the rest is cut. Whatever survives is only a claim: the trailer in the slot decides whether it is true.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from daemons.core.errors import TransferError
from daemons.core.ids import BlockHash
from daemons.protocol.base import MALFORMED
from daemons.protocol.block import BlockFilter, SealedBlock

MAGIC = b"MCINDEX1"
"""The last character is the format's number: a file of another one is not read."""

_FRAME = struct.Struct("<III")
"""payload's length, payload's CRC-32, CRC-32 of the eight bytes before"""
_WORDS = struct.Struct("<II")


class IndexHeader(msgspec.Struct, frozen=True, array_like=True):
    """What must be the same for slots to mean what they meant."""

    node: str
    segment_bytes: int
    slab_bytes: int


class SealedRecord(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """The slot's bytes and trailer were complete before this was written."""

    block: SealedBlock
    created_ms: int
    """Since 1970, by this host's clock."""


class FreedRecord(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Written before the slot was handed out again."""

    hash: BlockHash
    offset: int


class ClearedRecord(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """A range tombstone, to be told to masters that do not know of it; the frees it led to are recorded too."""

    filter: BlockFilter
    at_ms: int


class DeadRecord(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """Versions of an object that are not to come back, here or by way of a master that asks."""

    key: BlockHash
    version: int
    at_ms: int


class PinRecord(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """A block that is pinned here, as this life of the master said; a later record of it replaces the one before."""

    hash: BlockHash
    is_hard: bool
    until_ms: int
    """Since 1970, by this host's clock; 0: it was ended."""
    incarnation: int


IndexRecord = SealedRecord | FreedRecord | ClearedRecord | DeadRecord | PinRecord
_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(IndexHeader).decode
_decode_record = msgspec.msgpack.Decoder(IndexRecord).decode


class WrongIndex(TransferError):
    """Not an index, or one of another node, size or format; the text says which."""


def encode_header(header: IndexHeader) -> bytes:
    """How a file begins."""
    return MAGIC + _framed(_encode(header))


def encode_record(record: IndexRecord) -> bytes:
    """To be appended behind the header, in any number."""
    return _framed(_encode(record))


class IndexReader:
    """Iterate once; the counts are right when the end is reached."""

    def __init__(self, data: bytes, expected: IndexHeader) -> None:
        """Raises WrongIndex."""
        self._data = memoryview(data)
        self.num_bad_records = 0
        self.cut_bytes = 0
        self._start = self._check_header(expected)

    def __iter__(self) -> Iterator[IndexRecord]:
        at, data = self._start, self._data
        while (frame := _frame_at(data, at)) is not None:
            start, end, crc = frame
            at = end
            payload = data[start:end]
            try:
                if zlib.crc32(payload) == crc:
                    yield _decode_record(payload)
                    continue
            except MALFORMED:
                pass  # written by a release that knows more kinds of records
            self.num_bad_records += 1
        self.cut_bytes = len(data) - at

    def _check_header(self, expected: IndexHeader) -> int:
        data = self._data
        if data[: len(MAGIC) - 1] != MAGIC[:-1]:
            raise WrongIndex("it is no index of a cache node")
        if data[: len(MAGIC)] != MAGIC:
            raise WrongIndex("it has the format of another release")
        frame = _frame_at(data, len(MAGIC))
        if frame is None or zlib.crc32(data[frame[0] : frame[1]]) != frame[2]:
            raise WrongIndex("its header is damaged")
        start, end, _ = frame
        try:
            found = _decode_header(data[start:end])
        except MALFORMED:
            raise WrongIndex("its header is of another release") from None
        if found != expected:
            raise WrongIndex(f"it is of {_describe(found)}, this is {_describe(expected)}")
        return end


@dataclass(slots=True)
class IndexContents:
    """What is there after all records; in no useful order once the file was compacted."""

    live: dict[BlockHash, SealedRecord] = field(default_factory=dict)
    cleared: list[ClearedRecord] = field(default_factory=list)
    dead: list[DeadRecord] = field(default_factory=list)
    pins: dict[BlockHash, PinRecord] = field(default_factory=dict)
    """Those that have ended, too: they say which master's word is the last one here."""


def replay(records: IndexReader) -> IndexContents:
    """Later records win; a free of a place that was sealed anew since means nothing."""
    contents = IndexContents()
    live = contents.live
    for record in records:
        match record:
            case SealedRecord():
                live.pop(record.block.meta.hash, None)
                live[record.block.meta.hash] = record
            case FreedRecord():
                found = live.get(record.hash)
                if found is not None and found.block.offset == record.offset:
                    del live[record.hash]
            case ClearedRecord():
                contents.cleared.append(record)
            case DeadRecord():
                contents.dead.append(record)
            case PinRecord():
                contents.pins[record.hash] = record
    return contents


def _framed(payload: bytes) -> bytes:
    words = _WORDS.pack(len(payload), zlib.crc32(payload))
    return words + zlib.crc32(words).to_bytes(4, "little") + payload


def _frame_at(data: memoryview, at: int) -> tuple[int, int, int] | None:
    """(start, end, CRC-32) of the payload whose frame is at `at`; None at the end, torn, or not to be trusted."""
    start = at + _FRAME.size
    if start > len(data):
        return None
    length, crc, own_crc = _FRAME.unpack_from(data, at)
    if zlib.crc32(data[at : at + _WORDS.size]) != own_crc or start + length > len(data):
        return None
    return start, start + length, crc


def _describe(header: IndexHeader) -> str:
    return f"node {header.node} with {header.segment_bytes} bytes in slabs of {header.slab_bytes}"
