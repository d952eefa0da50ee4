"""Numbers that fit the directory's columns: whatever a peer sends, a report is recorded whole or refused whole."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from daemons.core.errors import ProtocolError
from daemons.protocol.packed import SEALED, SealedBlocks


def _bits_out_of_range() -> NDArray[np.uint64]:
    """Those that no record may have, in the words of one."""
    record = np.zeros(1, SEALED)
    for name in ("depth", "num_tokens"):
        record[name] = 1 << 31
    for name in ("trailer_bytes", "num_layers"):
        record["location"][name] = 1 << 31
    record["age_ms"] = 3 << 62
    for name in ("offset", "length"):
        record["location"][name] = 3 << 62
    return record.view(np.uint64)


_OUT_OF_RANGE: Final = _bits_out_of_range()


def check_sealed(sealed: SealedBlocks) -> None:
    """Raises ProtocolError. Whole records are joined bit by bit: one look at the result is enough where all fit."""
    sealed.check()
    words = np.frombuffer(sealed.rows, np.uint64).reshape(-1, len(_OUT_OF_RANGE))
    if np.count_nonzero(np.bitwise_or.reduce(words, axis=0) & _OUT_OF_RANGE):
        is_bad = np.any(words & _OUT_OF_RANGE, axis=1)
        first = sealed.hashes()[int(np.argmax(is_bad))]
        raise ProtocolError(f"sealed block {first.hex()[:8]} has a number out of range")
