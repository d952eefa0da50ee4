"""What a node refuses of a put before it takes any byte of it."""

import msgspec
import pytest

from daemons.client.objects.format import PIECE_BYTES, object_meta
from daemons.core.errors import ProtocolError, Unavailable
from daemons.core.ids import BlockHash, Epoch, HostId, Incarnation, new_put_id
from daemons.core.units import MIB
from daemons.mc_cachenode.puts.refusal import check_given_out, refusal
from daemons.protocol.block import MAX_INLINE_BYTES, MAX_TAIL_BYTES, BlockMeta, Put, PutBlock
from daemons.protocol.segment import DataAddress, RegionRef, Source, Strided
from daemons.store.directory.names import COUNTER_BITS
from daemons.transfer import contiguous

HERE = DataAddress(host_id=HostId("h"), unix_path="", tcp="", epoch=Epoch(1))
REGION = RegionRef(address=HERE, region_id=1, size_bytes=8)


def put_of(*versions: int) -> Put:
    blocks = [
        PutBlock(
            meta=object_meta(b"", b"a", 8),
            source=Source(region=REGION, ranges=contiguous(0, 8)),
            num_layers=1,
            version=version,
            piece_bytes=PIECE_BYTES,
        )
        for version in versions
    ]
    return Put(put_id=new_put_id(), blocks=blocks)


def with_tail(num_bytes: int, source_bytes: int = 0, layers: int = 1, piece: int = MIB) -> PutBlock:
    return PutBlock(
        meta=object_meta(b"", b"a", 8),
        source=Source(region=REGION, ranges=contiguous(0, source_bytes)),
        num_layers=layers,
        version=1,
        piece_bytes=piece,
        tail=bytes(num_bytes),
    )


def test_values_in_messages_have_a_largest_size_and_one_shape() -> None:
    longest = MAX_INLINE_BYTES + MAX_TAIL_BYTES
    taken = [with_tail(1), with_tail(longest), with_tail(longest, layers=5, piece=longest // 5)]
    taken += [with_tail(MAX_TAIL_BYTES, source_bytes=8)]
    assert [refusal(block) for block in taken] == [None] * len(taken)
    refused = [
        with_tail(0),
        with_tail(longest + 1),
        with_tail(MAX_TAIL_BYTES + 1, source_bytes=8),
        with_tail(100, source_bytes=-8),
        with_tail(100, layers=2),
        with_tail(longest, layers=longest, piece=1),
        with_tail(100, piece=0),
        with_tail(100, piece=-1),
    ]
    assert all(refusal(block) for block in refused)


def test_a_block_of_kv_has_nothing_behind_its_layers() -> None:
    meta = BlockMeta(
        hash=BlockHash(bytes(16)),
        parent=BlockHash(bytes(16)),
        namespace=b"n",
        depth=0,
        num_tokens=64,
        model="m",
    )
    rows = Strided(offset=0, row_bytes=8, num_rows=4, stride_bytes=8)
    block = PutBlock(meta=meta, source=Source(region=REGION, ranges=rows), num_layers=2)
    assert refusal(block) is None
    of_object = msgspec.structs.replace(meta, value_bytes=1)
    for odd in (
        msgspec.structs.replace(block, tail=b"1234"),
        msgspec.structs.replace(block, meta=of_object),
    ):
        assert "are of objects" in str(refusal(odd))


def test_versions_of_a_master_that_the_node_has_not_joined_are_told_to_come_again() -> None:
    known = Incarnation(3)
    check_given_out(put_of(), known)
    check_given_out(put_of(1, (3 << COUNTER_BITS) + 9), known)
    with pytest.raises(Unavailable, match="incarnation 4") as refused:
        check_given_out(put_of(1, (4 << COUNTER_BITS) + 1), known)
    assert refused.value.retry_after_ms


def test_a_version_that_no_master_gives_out_is_refused_for_good() -> None:
    for made_up in ((1 << 64) - 1, (3 << COUNTER_BITS) + (1 << COUNTER_BITS - 1)):
        with pytest.raises(ProtocolError, match=str(made_up)):
            check_given_out(put_of(1, made_up), Incarnation(3))
