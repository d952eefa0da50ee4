"""A block, or some of its layers, from its bucket into the caller's memory, verified. On the caller's thread."""

from dataclasses import dataclass

from daemons.core.errors import Rejected
from daemons.core.ids import short
from daemons.store.seal import BadSeal, layer_checksums, parse_trailer
from daemons.store.ssd.aligned import aligned_buffer, read_into
from daemons.store.ssd.files import BucketFile
from daemons.store.ssd.record import BlockRecord
from daemons.store.ssd.recovery import verify_block


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Where a block's payload begins."""

    block: BlockRecord
    file: BucketFile
    start: int
    is_direct: bool

    def read(self, target: memoryview, layers: tuple[int, int] | None) -> int:
        """Bytes that were filled. Raises OSError, BadSeal, Rejected."""
        block = self.block
        if layers is None and len(target) >= block.stored_bytes:
            stored = target[: block.stored_bytes]
            read_into(self.file, self.start, stored, is_direct=self.is_direct)
            verify_block(block, stored)
            return len(stored)
        return self._read_layers(target, *(layers or (0, block.num_layers)))

    def _read_layers(self, target: memoryview, first: int, last: int) -> int:
        block = self.block
        layer_bytes = block.length // block.num_layers
        if not 0 <= first < last <= block.num_layers or len(target) < (last - first) * layer_bytes:
            raise Rejected(
                f"layers {first} to {last} of {block.num_layers} do not go into {len(target)} bytes"
            )
        packed = aligned_buffer(block.trailer_bytes)[: block.trailer_bytes]
        read_into(self.file, self.start + block.length, packed, is_direct=self.is_direct)
        trailer = parse_trailer(packed, block.seal_checksum, block.meta.hash)
        payload = target[: (last - first) * layer_bytes]
        begin = self.start + first * layer_bytes
        read_into(self.file, begin, payload, is_direct=self.is_direct)
        if layer_checksums(payload, last - first) != list(trailer.checksums[first:last]):
            raise BadSeal(f"block {short(block.meta.hash)} is not what was sealed")
        return len(payload)
