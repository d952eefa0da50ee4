"""Which numbers of a report are refused."""

import numpy as np
import pytest

from daemons.core.errors import ProtocolError
from daemons.protocol.packed import SEALED, BlockKind, SealedBlocks
from daemons.store.directory.report_check import check_sealed

LIMITS = [
    ("depth", 1 << 31),
    ("num_tokens", 1 << 31),
    ("age_ms", 1 << 62),
    ("location/trailer_bytes", 1 << 31),
    ("location/num_layers", 1 << 31),
    ("location/offset", 1 << 62),
    ("location/length", 1 << 62),
]


def sealed_with(name: str, number: int) -> SealedBlocks:
    """Three blocks, of which the second has this number, and all that may be anything is all ones."""
    records = np.zeros(3, SEALED)
    for free in ("hash", "version", "seal_checksum", "spare"):
        records["location"][free] = np.frombuffer(b"\xff" * 16, records["location"][free].dtype)[0]
    records["parent"] = np.frombuffer(b"\xff" * 16, records["parent"].dtype)[0]
    records["wanted"] = (1 << 32) - 1
    column = records
    for part in name.split("/"):
        column = column[part]
    column[1] = number
    kinds = [BlockKind(namespace=b"n" * 16, model="m")]
    return SealedBlocks(rows=records.tobytes(), kinds=kinds)


@pytest.mark.parametrize(("name", "limit"), LIMITS)
def test_a_number_at_its_limit_is_refused_and_one_below_is_not(name: str, limit: int) -> None:
    check_sealed(sealed_with(name, limit - 1))
    for number in (limit, 2 * limit - 1):
        with pytest.raises(ProtocolError, match="sealed block ffffffff has a number out of range"):
            check_sealed(sealed_with(name, number))


def test_a_report_without_blocks_is_fine() -> None:
    check_sealed(SealedBlocks())
