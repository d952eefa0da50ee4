"""What a tier below DRAM keeps of a block beside its bytes."""

from dataclasses import dataclass

from daemons.protocol.block import BlockMeta
from daemons.store.segment.seal import trailer_length

SIZE_BYTES = 8


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """What a block's header says, beside where the record is."""

    meta: BlockMeta
    length: int
    num_layers: int
    version: int
    seal_checksum: int
    created_s: float
    """Wall clock, of the first put."""

    @property
    def trailer_bytes(self) -> int:
        return trailer_length(self.num_layers)

    @property
    def stored_bytes(self) -> int:
        """Payload and trailer."""
        return self.length + self.trailer_bytes

    @property
    def names(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Namespace, model, tenant and object as they follow a header; an object's name with its size."""
        meta = self.meta
        size = meta.value_bytes.to_bytes(SIZE_BYTES, "little") if meta.name else b""
        return meta.namespace, meta.model.encode(), meta.tenant.encode(), meta.name + size

    @property
    def names_bytes(self) -> int:
        """Behind the header."""
        return sum(map(len, self.names))
