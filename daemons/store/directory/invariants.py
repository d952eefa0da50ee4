"""What must hold between the tables of a directory after every change; tests ask."""

from collections import Counter

from daemons.store.directory.columns import NO_ROW
from daemons.store.directory.tables import Tables


def check_tables(tables: Tables) -> None:
    """Every row is reachable exactly once, counters agree, prefixes are no older than suffixes."""
    seen: set[int] = set()
    num_by_slot: Counter[int] = Counter()
    bytes_by_slot: Counter[int] = Counter()
    replicas = tables.replicas
    for row in tables.blocks.row_by_hash.values():
        _check_block(tables, row)
        for replica in tables.chain(row):
            assert replica not in seen
            seen.add(replica)
            assert replicas.block.values[replica] == row
            number = replicas.slot.values.item(replica)
            record = replicas.field("hash")[replica].tobytes(), replicas.number("common", replica)
            assert record == (tables.blocks.hash_of(row), number)
            num_by_slot[number] += 1
            assert replicas.length.values[replica] == replicas.number("length", replica)
            bytes_by_slot[number] += replicas.number("length", replica)
    assert len(seen) == replicas.num_rows
    is_free = tables.blocks.kind.values == NO_ROW
    assert (tables.blocks.head.values[is_free] == NO_ROW).all()
    assert not tables.blocks.wanted.values[is_free].any()
    assert not tables.blocks.hot.values[is_free].any()
    for number, slot in tables.slots:
        assert slot.num_replicas == num_by_slot[number]
        assert slot.num_bytes == bytes_by_slot[number]
    assert sum(tables.blocks.num_by_kind) == len(tables.blocks)
    for place, number in tables.slots.by_place.items():
        assert tables.slots[number].place == place
        assert not tables.slots[number].is_dropped


def _check_block(tables: Tables, row: int) -> None:
    blocks, leases = tables.blocks, tables.leases
    assert blocks.row_by_hash[blocks.hash_of(row)] == row
    assert blocks.kind.values[row] != NO_ROW
    named = blocks.names.get(row)
    assert named is None or blocks.rows_by_name[named.namespace][named.name] == row
    assert blocks.head.values[row] != NO_ROW, "a block without replicas is removed"
    parent = blocks.row_by_hash.get(blocks.parent_of(row))
    if parent is None:
        return
    used_s = leases.used_s.values
    assert used_s[parent] >= used_s[row]
    # A parent that came back is as hot as what follows it from the next use on.
    if tables.heat and used_s[row] > blocks.created_s.values[parent]:
        assert tables.heat.heat[parent] >= tables.heat.heat[row]
