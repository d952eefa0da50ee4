"""Objects in the directory: what is present, listed, orphaned; names follow their rows."""

from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.name_hash import chunk_key, name_key
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import Directory
from daemons.store.directory.object_rows import find_orphans, list_names, stat_namespaces

A, B = NodeId("a"), NodeId("b")


def region(node: NodeId) -> RegionRef:
    address = DataAddress(host_id=HostId("h"), unix_path=f"/{node}", tcp="", epoch=Epoch(1))
    return RegionRef(address=address, region_id=1, size_bytes=1 << 40)


def directory() -> Directory:
    made = Directory()
    for node in (A, B):
        made.add_node(node, HostId("h"), region(node))
    return made


def sealed(meta: BlockMeta, version: int, age_ms: int = 0) -> SealedBlock:
    return SealedBlock(
        meta=meta,
        offset=0,
        length=200,
        trailer_bytes=56,
        version=version,
        seal_checksum=1,
        num_layers=1,
        age_ms=age_ms,
    )


def named(name: bytes, version: int, size: int = 96, namespace: bytes = b"n") -> SealedBlock:
    key = name_key(namespace, name)
    meta = BlockMeta(
        hash=key,
        parent=key,
        namespace=namespace,
        depth=0,
        num_tokens=0,
        model="",
        name=name,
        value_bytes=size,
    )
    return sealed(meta, version)


def chunk(name: bytes, version: int, index: int, age_ms: int) -> SealedBlock:
    key = name_key(b"n", name)
    meta = BlockMeta(
        hash=chunk_key(key, version, index),
        parent=key,
        namespace=b"n",
        depth=1 + index,
        num_tokens=0,
        model="",
    )
    return sealed(meta, version, age_ms)


def rows(of: Directory, *names: bytes) -> list[int]:
    return [of.blocks.rows_by_name.get(b"n", {}).get(name, -1) for name in names]


def test_presence_tells_readable_away_and_absent_apart() -> None:
    made = directory()
    made.record_sealed(A, SealedBlocks.pack([named(b"x", 5), named(b"y", 5)]), now_s=1.0)
    made.record_sealed(B, SealedBlocks.pack([named(b"y", 5)]), now_s=1.0)
    assert list(made.presence(rows(made, b"x", b"none", b"y"), now_s=2.0)) == [1, 0, 1]
    made.set_suspect(A, True)
    assert list(made.presence(rows(made, b"x", b"y"), now_s=2.0)) == [2, 1]
    made.drop_node(A)
    assert list(made.presence(rows(made, b"x", b"y"), now_s=2.0)) == [2, 1]
    made.sweep(100)
    assert rows(made, b"x") == [-1]
    assert made.away == {name_key(b"n", b"x"): (A,)}
    made.check_invariants()
    made.record_sealed(B, SealedBlocks.pack([named(b"x", 5)]), now_s=3.0)
    assert not made.away


def test_what_a_node_came_back_without_is_absent_whether_it_was_swept_before_it_had_said_so() -> (
    None
):
    made = directory()
    names = [b"swept", b"late", b"kept"]
    made.record_sealed(A, SealedBlocks.pack([named(name, 5) for name in names]), now_s=1.0)
    made.record_sealed(B, SealedBlocks.pack([named(b"of b", 5)]), now_s=1.0)
    made.drop_node(B)
    made.sweep(100)
    made.drop_node(A)
    made.sweep(1)
    assert len(made.away) == 2
    made.add_node(A, HostId("h"), region(A))
    made.record_sealed(A, SealedBlocks.pack([named(b"kept", 5)]), now_s=2.0)
    made.announced(A)
    made.sweep(100)
    assert made.away == {name_key(b"n", b"of b"): (B,)}
    assert list(made.presence(rows(made, *names), now_s=3.0)) == [0, 0, 1]
    made.drop_node(A)
    made.sweep(100)
    assert made.away[name_key(b"n", b"kept")] == (A,), "its next absence counts anew"
    made.check_invariants()


def test_an_object_of_two_nodes_that_are_away_waits_for_either_and_is_absent_without_both() -> None:
    made = directory()
    for node in (A, B):
        made.record_sealed(node, SealedBlocks.pack([named(b"x", 5)]), now_s=1.0)
    for node in (A, B):
        made.drop_node(node)
        made.sweep(100)
    assert list(made.presence(rows(made, b"x"), now_s=2.0)) == [0]
    key = name_key(b"n", b"x")
    for node, left in ((B, (A,)), (A, None)):
        assert key in made.away, "the other one may still bring it back"
        made.add_node(node, HostId("h"), region(node))
        made.announced(node)
        assert made.away.get(key) == left
    made.check_invariants()


def test_an_object_that_another_node_can_read_is_not_away() -> None:
    made = directory()
    for node in (A, B):
        made.record_sealed(node, SealedBlocks.pack([named(b"x", 5)]), now_s=1.0)
    made.drop_node(A)
    made.sweep(100)
    assert not made.away
    made.record_freed(B, [name_key(b"n", b"x")])
    assert not made.away, "evicted, and not waited for"


def test_names_are_listed_by_page_with_what_the_newest_version_says() -> None:
    made = directory()
    made.record_sealed(A, SealedBlocks.pack([named(b"o%d" % n, 5) for n in range(10)]), now_s=1.0)
    made.record_sealed(A, SealedBlocks.pack([named(b"o3", 6, size=77)]), now_s=2.0)
    made.record_sealed(A, SealedBlocks.pack([named(b"other", 5, namespace=b"m")]), now_s=2.0)
    found, cursor = [], 0
    while True:
        page = list_names(made, b"n", b"o", cursor=cursor, limit=4, now_s=3.0)
        found += page.names
        if page.cursor is None:
            break
        cursor = page.cursor
    assert {each.name: (each.version, each.value_bytes) for each in found} == {
        b"o%d" % n: (6, 77) if n == 3 else (5, 96) for n in range(10)
    }
    assert {each.namespace: each.num_names for each in stat_namespaces(made)} == {b"n": 10, b"m": 1}


def test_chunks_are_orphans_without_their_object_in_their_version() -> None:
    made = directory()
    made.record_sealed(A, SealedBlocks.pack([named(b"x", 6)]), now_s=100.0)
    made.record_sealed(
        A,
        SealedBlocks.pack(
            [chunk(b"x", 6, 0, 90_000), chunk(b"x", 5, 0, 90_000), chunk(b"y", 5, 0, 90_000)]
        ),
        now_s=100.0,
    )
    made.record_sealed(
        B, SealedBlocks.pack([chunk(b"z", 5, 0, 90_000), chunk(b"z", 5, 1, 1_000)]), now_s=100.0
    )
    z = name_key(b"n", b"z")

    def orphans(held: BlockHash | None) -> set[BlockHash]:
        found = find_orphans(
            made,
            lambda key, version: (key, version) == (held, 5),
            first_row=0,
            sealed_before_s=40.0,
        )
        return {each for of_node in found.values() for each in of_node}

    x, y = name_key(b"n", b"x"), name_key(b"n", b"y")
    assert orphans(None) == {chunk_key(x, 5, 0), chunk_key(y, 5, 0), chunk_key(z, 5, 0)}
    assert orphans(z) == {chunk_key(x, 5, 0), chunk_key(y, 5, 0)}
