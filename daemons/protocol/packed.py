"""Many blocks in one message: records of one size in one run of bytes, and what they have in common beside them once.

A master handles hundreds of thousands of blocks a second: it takes and gives these records as they are, and only
whoever needs a block as an object unpacks it. All numbers are little-endian. What a peer sent is looked at when it is
unpacked, or by `check`: ProtocolError.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from daemons.core.errors import ProtocolError
from daemons.core.ids import BlockHash, HostId, NodeId
from daemons.protocol.base import Record
from daemons.protocol.block import BlockLocation, BlockMeta, SealedBlock, Tier
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.protocol.segment import SEGMENT_SPAN_BITS, RegionRef, place_of

HASH_TYPE: Final = np.dtype(f"V{HASH_BYTES}")
LOCATION: Final = np.dtype(
    [
        ("hash", HASH_TYPE),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("version", "<u8"),
        ("seal_checksum", "<u8"),
        ("trailer_bytes", "<u4"),
        ("num_layers", "<u4"),
        ("common", "<u4"),  # number of the place, or of the kind
        ("spare", "<u4"),  # zero
    ]
)
"""The directory keeps replicas in this form."""

SEALED: Final = np.dtype(
    [
        ("location", LOCATION),
        ("parent", HASH_TYPE),
        ("age_ms", "<u8"),
        ("depth", "<u4"),
        ("num_tokens", "<u4"),
        ("wanted", "<u4"),
        ("spare", "<u4"),
    ]
)
LOCATION_BYTES: Final = LOCATION.itemsize
SEALED_BYTES: Final = SEALED.itemsize
_WORD_BYTES: Final = 8
_PARENT: Final = LOCATION_BYTES // _WORD_BYTES
"""In words of a record; its hash is the first two."""
_LOCATION: Final = struct.Struct("<16s4Q4I")
_SEALED: Final = struct.Struct("<16s4Q4I16sQ4I")


class BlockPlace(Record, frozen=True, kw_only=True):
    """A tier of a node: where readers find its blocks, and, below DRAM, whom they ask to stage them."""

    node: NodeId
    region: RegionRef
    host_id: HostId
    tier: Tier = "dram"
    control: str = ""
    regions: dict[int, RegionRef] = msgspec.field(default_factory=dict)
    """Of the node's segments in DRAM beside that of `region`, by number: see SEGMENT_SPAN_BITS. Of one that is not
    known whoever reads there finds other bytes, and verifies.
    """


class BlockLocations(Record, frozen=True, kw_only=True):
    """Sealed replicas in order: LOCATION records whose `common` is a number in `places`."""

    rows: bytes = b""
    places: dict[int, BlockPlace] = msgspec.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows) // LOCATION_BYTES

    def hashes(self) -> list[BlockHash]:
        """Of whole records."""
        rows = np.frombuffer(self.rows, LOCATION, len(self))
        return cast(list[BlockHash], rows["hash"].tolist())

    def unpack(self) -> list[BlockLocation]:
        """Each as an object: about a microsecond a block."""
        places, found = self.places, []
        try:
            for row in _LOCATION.iter_unpack(self.rows):
                key, offset, length, version, checksum, trailer, layers, number, _ = row
                place = places[number]
                region = place.region
                if offset >> SEGMENT_SPAN_BITS:
                    segment, offset = place_of(offset)
                    region = place.regions.get(segment, region)
                location = BlockLocation(
                    hash=key,
                    node=place.node,
                    region=region,
                    offset=offset,
                    length=length,
                    trailer_bytes=trailer,
                    version=version,
                    seal_checksum=checksum,
                    num_layers=layers,
                    tier=place.tier,
                    host_id=place.host_id,
                    control=place.control,
                )
                found.append(location)
        except (struct.error, KeyError) as error:
            raise ProtocolError(f"locations of blocks are malformed: {error!r}") from None
        return found

    def unpack_groups(self, counts: Iterable[int]) -> list[list[BlockLocation]]:
        """So many at a time."""
        found = iter(self.unpack())
        return [list(islice(found, max(0, count))) for count in counts]

    @classmethod
    def pack(cls, locations: Iterable[BlockLocation]) -> "BlockLocations":
        """Of objects that are at hand."""
        numbers: dict[tuple[NodeId, Tier, int, int], int] = {}
        places: dict[int, BlockPlace] = {}
        rows = []
        for at in locations:
            name = (at.node, at.tier, at.region.address.epoch, at.region.region_id)
            number = numbers.setdefault(name, len(numbers))
            if number not in places:
                places[number] = BlockPlace(
                    node=at.node,
                    region=at.region,
                    host_id=at.host_id,
                    tier=at.tier,
                    control=at.control,
                )
            rows.append(_LOCATION.pack(*_values(at, at.hash, number)))
        return cls(rows=b"".join(rows), places=places)


class BlockKind(Record, frozen=True, kw_only=True):
    """What many blocks have in common."""

    namespace: bytes
    model: str
    tenant: str = ""


class NamedValue(Record, frozen=True, kw_only=True):
    """What only objects have: see BlockMeta."""

    name: bytes
    value_bytes: int


class SealedBlocks(Record, frozen=True, kw_only=True):
    """Sealed blocks in order: SEALED records whose `common` is a number in `kinds`; `named` are objects, by index."""

    rows: bytes = b""
    kinds: list[BlockKind] = msgspec.field(default_factory=list)
    named: dict[int, NamedValue] = msgspec.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows) // SEALED_BYTES

    def check(self) -> None:
        """Raises ProtocolError unless all of it fits together."""
        if len(self.rows) % SEALED_BYTES:
            raise ProtocolError(
                f"sealed blocks have {SEALED_BYTES} bytes each, got {len(self.rows)}"
            )
        if self.rows and int(self.locations()["common"].max()) >= len(self.kinds):
            raise ProtocolError("a sealed block is of a kind that is not described")
        if self.named and not 0 <= min(self.named) <= max(self.named) < len(self):
            raise ProtocolError("a name is of a sealed block that is not there")

    def columns(self) -> NDArray[np.void]:
        """A view, by SEALED's names."""
        return np.frombuffer(self.rows, SEALED)

    def locations(self) -> NDArray[np.void]:
        """A view, by LOCATION's names."""
        found: NDArray[np.void] = self.columns()["location"]
        return found

    def hashes(self) -> list[BlockHash]:
        return cast(list[BlockHash], self.locations()["hash"].tolist())

    def starts(self) -> NDArray[np.intp]:
        """Indexes of those whose parent is not the block before them."""
        words = np.frombuffer(self.rows, np.uint64).reshape(-1, SEALED_BYTES // _WORD_BYTES)
        is_start = np.ones(len(words), np.bool_)
        differs = words[1:, _PARENT : _PARENT + 2] != words[:-1, :2]
        is_start[1:] = differs[:, 0] | differs[:, 1]
        found: NDArray[np.intp] = is_start.nonzero()[0]
        return found

    def is_of_model(self, model: str) -> bool:
        """Whether any block may be of this one."""
        return any(kind.model == model for kind in self.kinds)

    def newest_version(self) -> int:
        """0 where there is none."""
        return int(self.locations()["version"].max(initial=0))

    def versions(self) -> list[int]:
        """In their order."""
        versions: list[int] = self.locations()["version"].tolist()
        return versions

    def aged(self, more_ms: int) -> "SealedBlocks":
        """The same, told so much later."""
        rows = self.columns().copy()
        rows["age_ms"] += np.uint64(max(0, more_ms))
        return msgspec.structs.replace(self, rows=rows.tobytes())

    def part(self, wanted: Sequence[int]) -> "SealedBlocks":
        """Those at these indexes."""
        rows = np.frombuffer(self.rows, f"V{SEALED_BYTES}")[np.array(wanted, np.intp)]
        named = self.named
        if named:
            named = {new: named[old] for new, old in enumerate(wanted) if old in named}
        return SealedBlocks(rows=rows.tobytes(), kinds=self.kinds, named=named)

    def without(self, hashes: set[BlockHash]) -> "SealedBlocks":
        if not hashes:
            return self
        return self.part([at for at, each in enumerate(self.hashes()) if each not in hashes])

    def __iter__(self) -> Iterator[SealedBlock]:
        """Each as an object: about two microseconds a block."""
        self.check()
        for index, row in enumerate(_SEALED.iter_unpack(self.rows)):
            key, offset, length, version, checksum, trailer, layers, number, _, *more = row
            parent, age_ms, depth, num_tokens, wanted, _ = more
            kind, named = self.kinds[number], self.named.get(index)
            meta = BlockMeta(
                hash=key,
                parent=parent,
                namespace=kind.namespace,
                depth=depth,
                num_tokens=num_tokens,
                model=kind.model,
                tenant=kind.tenant,
                name=named.name if named else b"",
                value_bytes=named.value_bytes if named else 0,
            )
            yield SealedBlock(
                meta=meta,
                offset=offset,
                length=length,
                trailer_bytes=trailer,
                version=version,
                seal_checksum=checksum,
                num_layers=layers,
                age_ms=age_ms,
                wanted=wanted,
            )

    @classmethod
    def pack(cls, blocks: Iterable[SealedBlock]) -> "SealedBlocks":
        """Of objects that are at hand."""
        numbers: dict[tuple[bytes, str, str], int] = {}
        named: dict[int, NamedValue] = {}
        rows = []
        for index, block in enumerate(blocks):
            meta = block.meta
            number = numbers.setdefault((meta.namespace, meta.model, meta.tenant), len(numbers))
            values = _values(block, meta.hash, number)
            more = (meta.parent, block.age_ms, meta.depth, meta.num_tokens, block.wanted, 0)
            rows.append(_SEALED.pack(*values, *more))
            if meta.name:
                named[index] = NamedValue(name=meta.name, value_bytes=meta.value_bytes)
        kinds = [BlockKind(namespace=n, model=m, tenant=t) for n, m, t in numbers]
        return cls(rows=b"".join(rows), kinds=kinds, named=named)


def _values(
    at: BlockLocation | SealedBlock, key: BlockHash, number: int
) -> tuple[bytes, int, int, int, int, int, int, int, int]:
    place = (key, at.offset, at.length, at.version, at.seal_checksum)
    return (*place, at.trailer_bytes, at.num_layers, number, 0)
