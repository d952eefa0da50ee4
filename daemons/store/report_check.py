"""Numbers that fit the directory's columns: whatever a peer sends, a report is recorded whole or refused whole."""

from collections.abc import Iterable

from daemons.core.errors import ProtocolError
from daemons.protocol.block import SealedBlock
from daemons.protocol.prefix_hash import HASH_BYTES


def check_sealed(sealed: Iterable[SealedBlock]) -> None:
    """Raises ProtocolError. Numbers are joined bit by bit: what is shifted out of range is 0 where all of them fit,
    and -1 where one is negative.
    """
    for block in sealed:
        meta = block.meta
        if len(meta.hash) != HASH_BYTES or len(meta.parent) != HASH_BYTES:
            raise ProtocolError(f"a block hash has {HASH_BYTES} bytes, got {len(meta.hash)}")
        of_31_bits = (
            meta.depth | meta.num_tokens | block.trailer_bytes | block.num_layers | block.wanted
        )
        of_62_bits = block.offset | block.length | block.age_ms
        if (of_31_bits >> 31) or (of_62_bits >> 62) or (block.version | block.seal_checksum) >> 64:
            raise ProtocolError(f"sealed block {meta.hash.hex()[:8]} has a number out of range")
