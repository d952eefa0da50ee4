"""The object tier's engine against a real S3-compatible server: what it finds again, and what a bad server costs."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.daemon import SLACK, wait_for
from kit.object_server import ObjectServer
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.errors import ConfigError, NotFound, Unavailable
from daemons.core.units import KIB, MIB
from daemons.store.object import ObjectSettings, ObjectTier, S3Place, open_s3
from daemons.store.object.s3 import boto3_modules
from daemons.store.segment.seal import BadSeal

SETTINGS = ObjectSettings(
    capacity_bytes=16 * MIB,
    part_bytes=256 * KIB,
    commit_delay_s=0.05,
    rest_s=0.2 * SLACK**2,
    close_s=5.0,
)
LAYER_BYTES = 16 * KIB


@pytest.fixture
def name(object_server: ObjectServer, tmp_path: Path) -> str:
    bucket = "".join(c for c in tmp_path.name if c.isalnum()).lower()
    object_server.make_bucket(bucket)
    return bucket


@pytest.fixture
def open_tier(object_server: ObjectServer, name: str) -> Iterator[Callable[..., ObjectTier]]:
    opened: list[ObjectTier] = []

    def make(*, timeout_s: float = 5.0) -> ObjectTier:
        for tier in opened:
            tier.close()
        tier = ObjectTier(object_server.open(name, timeout_s=timeout_s), SETTINGS)
        opened.append(tier)
        tier.start()
        return tier

    yield make
    for tier in opened:
        tier.close()


def put_all(tier: ObjectTier, numbers: range) -> None:
    wait_for(lambda: tier.is_open)
    puts = [tier.put(*make_block(number, layer_bytes=LAYER_BYTES)) for number in numbers]
    assert all(put.result(20) for put in puts)


def assert_read(tier: ObjectTier, numbers: range) -> None:
    for number in numbers:
        block, source = make_block(number, layer_bytes=LAYER_BYTES)
        assert tier.get(block.meta.hash) == block
        target = memoryview(bytearray(block.stored_bytes))
        tier.submit_read(block.meta.hash, target).result(20)
        assert target == source


def test_a_start_finds_what_was_put_and_not_deleted(
    open_tier: Callable[..., ObjectTier], object_server: ObjectServer, name: str
) -> None:
    tier = open_tier()
    put_all(tier, range(20))
    assert len(parts(object_server, name)) == 2 * tier.counters.parts_written < 20, (
        "many to an object"
    )
    assert_read(tier, range(20))
    tier.delete([key(number) for number in range(5)]).result(20)
    again = open_tier()
    wait_for(lambda: again.is_open)
    assert again.num_blocks == 15
    assert_read(again, range(5, 20))
    again.delete([key(number) for number in range(20)]).result(20)
    assert parts(object_server, name) == []


def test_two_nodes_share_a_bucket_and_no_key(object_server: ObjectServer, name: str) -> None:
    a, b = object_server.open(name, "mooncake/a"), object_server.open(name, "mooncake/b")
    a.put("data/x", memoryview(b"of a"))
    b.put("data/x", memoryview(b"of b"))
    assert (bytes(a.get("data/x")), bytes(b.get("data/x", 3, 1))) == (b"of a", b"b")
    assert [found.key for found in a.list("data/")] == ["data/x"]
    a.delete(["data/x", "data/never-there"])
    assert list(a.list("")) == []
    with pytest.raises(NotFound):
        a.get("data/x")
    with pytest.raises(NotFound):
        b.get("data/x", 100, 8)
    assert object_server.keys(name) == ["mooncake/b/data/x"]


def test_an_object_that_was_changed_is_a_miss_and_is_dropped(
    open_tier: Callable[..., ObjectTier], object_server: ObjectServer, name: str
) -> None:
    tier = open_tier()
    put_all(tier, range(4))
    (data,) = object_server.keys(name, "test/data/")
    client = object_server.client
    body = bytearray(client.get_object(Bucket=name, Key=data)["Body"].read())
    body[100] ^= 1
    client.put_object(Bucket=name, Key=data, Body=bytes(body))
    with pytest.raises(BadSeal):
        tier.submit_read(key(0), memoryview(bytearray(40_000))).result(20)
    assert (tier.num_blocks, tier.counters.bad_blocks) == (3, 1)
    assert_read(tier, range(1, 4))
    wait_for(lambda: ".000001" in "".join(object_server.keys(name, "test/manifest/")))
    client.delete_object(Bucket=name, Key=data)
    with pytest.raises(NotFound):
        tier.submit_read(key(1), memoryview(bytearray(40_000))).result(20)
    assert tier.num_blocks == 2
    tier.close()
    (manifest,) = object_server.keys(name, "test/manifest/")
    client.put_object(Bucket=name, Key=data, Body=bytes(body))
    client.put_object(Bucket=name, Key=manifest, Body=b"no manifest")
    again = open_tier()
    wait_for(lambda: again.is_open)
    assert (again.num_blocks, again.counters.damaged_manifests) == (0, 1)


def test_half_empty_objects_are_written_together(
    open_tier: Callable[..., ObjectTier], object_server: ObjectServer, name: str
) -> None:
    tier = open_tier()
    for first in range(0, 8, 2):
        put_all(tier, range(first, first + 2))
    wait_for(lambda: tier.counters.copied_blocks > 0 and len(parts(object_server, name)) <= 4)
    assert_read(tier, range(8))
    again = open_tier()
    wait_for(lambda: again.is_open)
    assert_read(again, range(8))


def test_a_server_that_hangs_or_is_gone_costs_bounded_waits_and_misses(
    open_tier: Callable[..., ObjectTier], object_server: ObjectServer
) -> None:
    tier = open_tier(timeout_s=0.5)
    put_all(tier, range(4))
    block, source = make_block(9, layer_bytes=LAYER_BYTES)
    for begin, end in (
        (object_server.suspend, object_server.resume),
        (object_server.stop, object_server.start),
    ):
        begin()
        try:
            began_s = time.monotonic()
            with pytest.raises(Unavailable):
                tier.submit_read(key(0), memoryview(bytearray(40_000))).result(20)
            assert time.monotonic() - began_s < 30
            with pytest.raises(Unavailable):  # at once, while it rests
                tier.submit_read(key(0), memoryview(bytearray(40_000)))
            with pytest.raises(Unavailable):
                tier.put(block, source).result(20)
            assert tier.num_blocks == 4
            assert tier.why_resting is not None
        finally:
            end()
        wait_for(lambda: is_answered(lambda: assert_read(tier, range(4))), 30)
    wait_for(lambda: is_answered(lambda: tier.put(block, source).result(20)), 30)
    assert tier.num_blocks == 5


def is_answered(call: Callable[[], object]) -> bool:
    """False while it rests."""
    try:
        call()
    except Unavailable:
        return False
    return True


def test_a_close_does_not_wait_for_a_server_that_hangs(
    open_tier: Callable[..., ObjectTier], object_server: ObjectServer
) -> None:
    tier = open_tier()
    put_all(tier, range(2))
    object_server.suspend()
    try:
        read = tier.submit_read(key(0), memoryview(bytearray(40_000)))
        began_s = time.monotonic()
        tier.close()
        assert time.monotonic() - began_s < 15
        with pytest.raises(Unavailable):
            read.result(0)
    finally:
        object_server.resume()


def test_wrong_credentials_and_names_say_what_to_check(
    object_server: ObjectServer, name: str
) -> None:
    place = S3Place(
        bucket=name,
        prefix="p",
        endpoint=object_server.url,
        region="us-east-1",
        credentials=("test:tester", "wrong", None),
        timeout_s=5.0,
        connections=1,
    )
    with pytest.raises(Unavailable, match=r"check object\.bucket"):
        open_s3(place).put("x", memoryview(b"x"))
    with pytest.raises(Unavailable, match=r"check object\.bucket 'no-such-bucket'"):
        object_server.open("no-such-bucket").put("x", memoryview(b"x"))
    with pytest.raises(ConfigError, match=r"mooncake-mc\[s3\]"):
        boto3_modules("no_such_package")


def parts(object_server: ObjectServer, name: str) -> list[str]:
    """Keys of objects and of their manifests."""
    kinds = ("test/data/", "test/manifest/")
    return [found for kind in kinds for found in object_server.keys(name, kind)]
