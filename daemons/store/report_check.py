"""Numbers that fit the directory's columns: whatever a peer sends, a report is recorded whole or refused whole."""

import numpy as np

from daemons.core.errors import ProtocolError
from daemons.protocol.packed import SealedBlocks


def check_sealed(sealed: SealedBlocks) -> None:
    """Raises ProtocolError. Numbers are joined bit by bit: what is shifted out of range is 0 where all of them fit."""
    sealed.check()
    columns = sealed.columns()
    location = columns["location"]
    of_31_bits = columns["depth"] | columns["num_tokens"]
    of_31_bits |= location["trailer_bytes"] | location["num_layers"]
    of_62_bits = location["offset"] | location["length"] | columns["age_ms"]
    is_bad = (of_31_bits >> 31).astype(bool) | (of_62_bits >> 62).astype(bool)
    if np.count_nonzero(is_bad):
        first = sealed.hashes()[int(np.argmax(is_bad))]
        raise ProtocolError(f"sealed block {first.hex()[:8]} has a number out of range")
