import pytest

from daemons.core.errors import TransferError
from daemons.core.ids import new_epoch
from daemons.transfer import (
    GenerationTable,
    Read,
    StaleGeneration,
    TransferEngine,
    as_bytes,
    contiguous,
)
from daemons.transfer.transports.base import ReadBatch


def test_advance_voids_what_was_given_out() -> None:
    engine = TransferEngine(epoch=new_epoch(), transports=())
    table = GenerationTable(engine, 3)
    region, target = engine.register(bytearray(b"abcd")), bytearray(4)
    guard = table.guard(2)
    assert (guard.value, table.current(2)) == (1, 1)
    reads = [Read.into(contiguous(0, 4), as_bytes(target))]
    engine.read(region, reads, generation=guard)
    assert target == b"abcd"
    assert table.advance(2) == 2
    with pytest.raises(StaleGeneration, match="was reused"):
        engine.read(region, reads, generation=guard)
    engine.read(region, reads, generation=table.guard(2))
    with pytest.raises(TransferError, match="is not in"):
        table.guard(3)
    table.close()
    engine.close()


def test_a_change_during_the_read_is_noticed() -> None:
    engine = TransferEngine(epoch=new_epoch(), transports=())
    table = GenerationTable(engine, 1)
    region, target = engine.register(bytearray(b"abcd")), bytearray(4)
    batch = ReadBatch(
        region,
        [Read.into(contiguous(0, 4), as_bytes(target))],
        generation=table.guard(0),
        on_read=lambda _: table.advance(0),
    )
    with pytest.raises(StaleGeneration):
        engine.run(batch)
    table.close()
    engine.close()
