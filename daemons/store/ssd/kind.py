"""What many blocks of a tier have in common, kept once."""

from typing import NamedTuple


class Kind(NamedTuple):
    """As in protocol.packed.BlockKind."""

    namespace: bytes
    model: str
    tenant: str
