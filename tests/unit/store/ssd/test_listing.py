"""A closed bucket's footer says what its headers say, or is not believed."""

import contextlib
from dataclasses import replace
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.store.ssd.crash_disk import CrashDisk, Crashed, CrashFile, Inode
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.clock import ManualClock
from daemons.core.ids import BlockHash
from daemons.store.lower import BlockRecord
from daemons.store.ssd import SsdSettings, SsdTier
from daemons.store.ssd.buckets import Bucket
from daemons.store.ssd.files import ALIGN
from daemons.store.ssd.index import Location
from daemons.store.ssd.listing import (
    FOOTER_BYTES,
    Listing,
    read_footer,
    room_bytes,
    write_footer,
)
from daemons.store.ssd.loading import IndexLoader
from daemons.store.ssd.record import Place, RecordKind, TombstoneRecord, record_bytes
from daemons.store.ssd.recovery import scan_bucket

SETTINGS = SsdSettings(
    capacity_bytes=12 * 17 * ALIGN,
    bucket_bytes=17 * ALIGN,
    batch_bytes=4 * ALIGN,
    read_workers=0,
)


def opened(disk: CrashDisk) -> SsdTier:
    return SsdTier(disk.directory(), SETTINGS, clock=ManualClock())


def write_out(tier: SsdTier) -> None:
    while tier.run_once():
        pass


def lived_in(seed: int) -> CrashDisk:
    """Some buckets of puts, newer versions, deletes and clears, closed."""
    disk, random = CrashDisk(random=Random(seed)), Random(seed)
    tier = opened(disk)
    for number in range(60):
        name = random.randrange(40)
        held = tier.get(key(name))
        version = held.version + 1 if held else 1
        tier.put(*make_block(name, version=version, namespace=b"ab"[name % 2 :][:1]))
        if random.random() < 0.3:
            tier.delete([key(random.randrange(40)) for _ in range(3)])
        if number in (20, 40):
            tier.clear(b"a" if seed % 2 else None)
        write_out(tier)
    tier.close()
    return disk


def state(tier: SsdTier) -> dict[BlockHash, tuple[BlockRecord, Location] | None]:
    return {block_hash: tier._blocks.get(block_hash) for block_hash in tier.hashes()}


def without_footers(disk: CrashDisk) -> None:
    for name, inode in disk.inodes.items():
        bucket = Bucket(1, int(name[16:32], 16), CrashFile(disk, inode), name, len(inode.now))
        del inode.now[scan_bucket(bucket, is_direct=True, is_last=False).end :]


@pytest.mark.parametrize("seed", range(6))
def test_footers_lead_to_the_same_index_as_headers(seed: int) -> None:
    disk = lived_in(seed)
    tier = opened(disk)
    assert tier.counters.scanned_buckets == 0
    tier.check_invariants()
    listed = state(tier)
    tier.close()
    without_footers(disk)
    for has_footers in (False, True):  # the first start without them writes them
        tier = opened(disk)
        assert (tier.counters.scanned_buckets == 0) == has_footers
        tier.check_invariants()
        assert state(tier) == listed
        assert listed
        tier.close()


def test_a_closed_bucket_costs_one_read() -> None:
    disk = lived_in(1)
    calls: list[str] = []
    disk.fault = calls.append
    tier = opened(disk)
    assert calls.count("read") == len(disk.inodes) > 3
    assert tier.num_blocks


def test_a_damaged_footer_is_not_believed() -> None:
    random = Random(3)
    disk = lived_in(3)
    expected = set(opened(disk).hashes())
    for _ in range(60):
        inode = random.choice(list(disk.inodes.values()))
        before = bytes(inode.now)
        inode.now[len(inode.now) - 1 - random.randrange(ALIGN)] ^= 1 << random.randrange(8)
        tier = opened(disk)
        assert set(tier.hashes()) == expected
        assert tier.counters.scanned_buckets <= 1
        inode.now[:] = before


def test_another_buckets_footer_is_not_believed() -> None:
    disk = lived_in(2)
    expected = set(opened(disk).hashes())
    first, second, *_ = disk.inodes.values()
    first.now[-ALIGN:] = second.now[-ALIGN:]
    tier = opened(disk)
    assert set(tier.hashes()) == expected
    assert tier.counters.scanned_buckets == 1


def test_a_plug_pulled_while_a_bucket_is_closed_costs_nothing() -> None:
    for seed in range(40):
        disk = CrashDisk(random=Random(seed))
        tier = opened(disk)
        for number in range(12):
            tier.put(*make_block(number))
        tier.delete([key(3)])
        write_out(tier)
        disk.ops_left = seed % 4
        with contextlib.suppress(Crashed):
            tier.close()
        disk.crash()
        disk.ops_left = seed % 5 if seed % 2 else None
        try:
            tier = opened(disk)
        except Crashed:
            disk.crash()
            tier = opened(disk)
        disk.ops_left = None
        assert set(tier.hashes()) == {key(n) for n in range(12)} - {key(3)}
        tier.put(*make_block(20))
        write_out(tier)
        disk.crash()
        assert set(opened(disk).hashes()) == {key(n) for n in (*range(12), 20)} - {key(3)}


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 9), st.text(max_size=20), st.binary(max_size=40)),
            st.lists(st.integers(0, 9), max_size=20),
        ),
        max_size=30,
    )
)
def test_it_comes_back_as_it_was_within_the_room_kept_for_it(
    steps: list[tuple[int, str, bytes] | list[int]],
) -> None:
    listing, bound, offset = Listing(), FOOTER_BYTES, 0
    for sequence, step in enumerate(steps):
        record: BlockRecord | TombstoneRecord
        if isinstance(step, tuple):
            number, model, namespace = step
            block, _ = make_block(number, namespace=namespace)
            record = replace(block, meta=msgspec.structs.replace(block.meta, model=model))
        else:
            record = TombstoneRecord(RecordKind.DELETES, sequence, tuple(map(key, step)))
        listing.add(Place(offset, sequence), record)
        offset += record_bytes(record)
        bound += room_bytes(record) - record_bytes(record)
    file = CrashFile(CrashDisk(), Inode(now=bytearray(offset)))
    bucket = Bucket(7, 99, file, "b", 0, used_bytes=offset)
    bucket.file_bytes = write_footer(bucket, listing)
    assert bucket.file_bytes == file.size() <= -(-(offset + bound) // ALIGN) * ALIGN
    found = read_footer(bucket, is_direct=True)
    assert found is not None
    assert (found.end, found.next_sequence) == (offset, listing.next_sequence)
    assert np.array_equal(found.rows, listing.rows)
    assert (found.kinds, found.tombstones) == (listing.kinds, listing.tombstones)
    assert found.names == listing.names


def test_the_last_of_each_name_counts_in_whatever_order_buckets_come() -> None:
    """Against a plain replay of the same records."""
    random = Random(11)
    for _ in range(40):
        listings = {bucket_id: Listing() for bucket_id in (1, 2, 3)}
        held: dict[int, tuple[int, int]] = {}
        sequence = 0
        for bucket_id, listing in listings.items():
            for at in range(15):
                sequence += 1
                place, number = Place(at * ALIGN, sequence), random.randrange(8)
                if random.random() < 0.7:
                    block = make_block(number, namespace=bytes([number % 2]))[0]
                    listing.add(place, block)
                    held[number] = (bucket_id, sequence)
                    continue
                until = random.randint(max(0, sequence - 20), sequence)
                kind = random.choice(list(RecordKind)[1:])
                keys = (key(number),) if kind is RecordKind.DELETES else ()
                namespace = b"\0" if kind is RecordKind.CLEAR else b""
                listing.add(place, TombstoneRecord(kind, until, keys, namespace))
                for name in list(held):
                    is_meant = {
                        RecordKind.DELETES: name == number,
                        RecordKind.CLEAR: name % 2 == 0,
                        RecordKind.CLEAR_ALL: True,
                    }[kind]
                    if is_meant and held[name][1] < until:
                        del held[name]
        loader = IndexLoader(random.getrandbits)
        for bucket_id in random.sample(list(listings), 3):
            loader.add(bucket_id, listings[bucket_id])
        buckets = [Bucket(n, 0, CrashFile(CrashDisk(), Inode()), "b", 0) for n in listings]
        index = loader.finish(buckets)
        index.check_invariants()
        rows = [index.find(key(number)) for number in held]
        found = [(index.location(row).bucket, index.location(row).sequence) for row in rows]
        assert found == list(held.values())
        assert len(index) == len(held) == sum(bucket.num_live for bucket in buckets)
