"""A real mc-cachenode with a real mc-master: blocks put from this process and others, read back, verified."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from kit.daemon import Daemon, free_port, wait_for
from kit.pool import (
    NAMESPACE,
    NUM_LAYERS,
    ROW,
    Pool,
    SourceMemory,
    chain,
    read_all,
    running_pool,
    short_directory,
    sources,
    start_node,
)

from daemons.client.store import BlockReader, put_blocks
from daemons.core.errors import McError, Unavailable
from daemons.core.ids import BlockHash, NodeId, new_epoch, new_put_id
from daemons.protocol.block import BadReplica, BlockMeta, Put, PutBlock, PutReply
from daemons.protocol.cache import CacheStat, CacheStatReply
from daemons.protocol.lookup import Match, MatchReply
from daemons.protocol.node import ListNodes, ListNodesReply
from daemons.protocol.pin import PinBlocks
from daemons.protocol.prefix_hash import root_hash
from daemons.protocol.segment import Generation, RegionRef, Source, Strided
from daemons.rpc import SyncClient
from daemons.transfer import TransferEngine
from mcctl.main import main


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def pool(directory: Path) -> Iterator[Pool]:
    with running_pool(directory) as pool:
        yield pool


@pytest.fixture
def lonely(directory: Path) -> Iterator[Pool]:
    """A node whose master does not exist, and who waits long before it evicts by itself."""
    node = start_node(directory, f"tcp://127.0.0.1:{free_port()}", "report.orphan_after_s=3600")
    try:
        yield Pool(node, node.find(r"ready .*control=(\S+)"), "", directory)
    finally:
        node.stop()


@pytest.fixture
def make_source(directory: Path) -> Iterator[Callable[..., SourceMemory]]:
    with sources(directory) as make:
        yield make


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_with_a_secret_others_read_what_a_reply_granted_and_nothing_else(
    directory: Path, make_source: Callable[..., SourceMemory], transport: str
) -> None:
    secret = directory / "secret"
    secret.write_bytes(b"the secret of a test")
    secret.chmod(0o600)
    hashes, source = chain(4), make_source(4)  # whose engine does not know it
    with running_pool(directory, str(secret)) as pool, SyncClient(pool.master) as client:
        assert pool.put([source.block(i, hashes) for i in range(4)]).results == ["stored"] * 4
        pool.wait_until_sealed(hashes)
        reader = BlockReader(make_source(1, (transport,)).engine)

        def num_good(ask: Match, *, only: int = 4, locations: Match | None = None) -> int:
            reply, named = client.request(ask), client.request(locations or ask)
            assert isinstance(reply, MatchReply)
            assert isinstance(named, MatchReply)
            opened = reader.open(named.locations.unpack()[:only], grants=reply.grants)
            assert not opened.bad
            return opened.num_good

        whole = Match(hashes=hashes, wants_grants=True)
        assert num_good(whole) == 4
        assert num_good(whole, only=3) == 3
        assert num_good(Match(hashes=hashes)) == 0, "without a grant"
        assert num_good(Match(hashes=hashes, wants_grants=True, lease_ms=0)) == 0, "expired"
        part = Match(hashes=hashes[:2], wants_grants=True)
        assert num_good(part, locations=whole) == 0, "more than was granted"
        reply = client.request(whole)
        assert isinstance(reply, MatchReply)
        location, [signed] = reply.locations.unpack()[0], reply.grants
        assert reader.read_block(location) is None
        moved = msgspec.structs.replace(location, offset=location.offset + 4096)
        for grant in (
            msgspec.structs.replace(signed.grant, mac=bytes(16)),
            msgspec.structs.replace(signed.grant, expires_ms=signed.grant.expires_ms + 1),
            msgspec.structs.replace(signed.grant, operation="write"),
        ):
            forged = msgspec.structs.replace(signed, grant=grant)
            assert not reader.open([location], grants=[forged]).num_good
        assert not reader.open([moved], grants=[signed]).num_good
        assert reader.open([location], grants=[signed]).num_good == 1


@pytest.mark.parametrize("transports", [("shm", "tcp"), ("tcp",)])
def test_blocks_come_back_as_they_were_put(
    pool: Pool, make_source: Callable[..., SourceMemory], transports: tuple[str, ...]
) -> None:
    source, hashes = make_source(12, transports), chain(12)
    reply = pool.put([source.block(i, hashes, with_checksums=True) for i in range(12)])
    assert reply.results == ["stored"] * 12, reply.why
    locations = pool.wait_until_sealed(hashes)
    num_good, read, bad = read_all(source.engine, locations)
    assert (num_good, bad) == (12, [])
    assert np.array_equal(read, source.array)
    assert BlockReader(source.engine).read_block(locations[3]) == source.payload(3)


def test_a_put_is_repeated_renamed_and_contradicted(
    pool: Pool, make_source: Callable[..., SourceMemory]
) -> None:
    source, hashes = make_source(3), chain(3)
    blocks = [source.block(i, hashes, with_checksums=True) for i in range(3)]
    first = Put(put_id=new_put_id(), blocks=blocks[:2])
    with SyncClient(pool.control) as client:
        assert client.request(first) == client.request(first)
        again = put_blocks(client, blocks)
        assert again.results == ["already_sealed", "already_sealed", "stored"]
        other = msgspec.structs.replace(blocks[0], checksums=blocks[1].checksums)
        assert put_blocks(client, [other]).results == ["conflict"]
        lying = msgspec.structs.replace(
            source.block(2, chain(3, seed=99)), checksums=blocks[0].checksums
        )
        reply = put_blocks(client, [lying])
        assert reply.results == ["failed"]
        assert "checksums" in reply.why
        twice = put_blocks(client, [source.block(0, chain(3, seed=77))] * 2)
        assert twice.results == ["stored", "being_written"]


def test_malformed_puts_are_refused_one_by_one(
    lonely: Pool, make_source: Callable[..., SourceMemory]
) -> None:
    source, hashes = make_source(2), chain(2)
    good = source.block(0, hashes)
    block = source.block(1, hashes)
    replace = msgspec.structs.replace
    ranges = block.source.ranges
    bad = [
        replace(block, num_layers=0),
        replace(block, num_layers=NUM_LAYERS + 1),
        replace(block, checksums=[1]),
        replace(block, source=replace(block.source, ranges=replace(ranges, row_bytes=0))),
        replace(block, source=replace(block.source, ranges=replace(ranges, offset=1 << 50))),
        replace(block, source=replace(block.source, ranges=replace(ranges, stride_bytes=1))),
        replace(
            block,
            source=replace(block.source, region=replace(source.region, region_id=12345)),
        ),
        *(
            replace(block, source=replace(block.source, region=replace(source.region, **change)))
            for change in (
                {"region_id": -1},
                {"size_bytes": 1 << 63},
                {"address": replace(source.region.address, unix_path="\0bad", tcp="")},
                {"address": replace(source.region.address, host_id="x", tcp="no-port")},
                {"address": replace(source.region.address, host_id="x", tcp="." * 80 + ":1")},
                {"address": replace(source.region.address, epoch=-5)},
            )
        ),
        replace(block, meta=replace(block.meta, hash=BlockHash(b"short"))),
        replace(block, meta=replace(block.meta, depth=1 << 40)),
        replace(block, meta=replace(block.meta, model="m" * 1000)),
    ]
    for wrong in bad:
        reply = lonely.put([good, wrong])
        assert reply.results[1] == "failed", reply
        assert reply.why
    assert lonely.put([block]).results == ["stored"]


def test_a_full_segment_says_why_and_the_master_makes_room(
    pool: Pool, make_source: Callable[..., SourceMemory]
) -> None:
    source = make_source(16)
    stored: list[BlockHash] = []
    seed = 0
    reply = PutReply(results=[])
    while "exhausted" not in reply.results and seed < 64:
        hashes = chain(16, seed=1000 * seed)
        reply = pool.put([source.block(i, hashes) for i in range(16)])
        stored += [h for h, status in zip(hashes, reply.results, strict=True) if status == "stored"]
        seed += 1
    if "exhausted" in reply.results:
        assert "no slot of" in reply.why
        assert reply.retry_after_ms
    hashes = chain(16, seed=999_000)

    def is_stored() -> bool:
        answer = pool.put([source.block(i, hashes) for i in range(16)])
        return set(answer.results) <= {"stored", "already_sealed"}

    wait_for(is_stored, 15)
    num_good, read, _ = read_all(source.engine, pool.wait_until_sealed(hashes))
    assert num_good == 16
    assert np.array_equal(read, source.array)
    with SyncClient(pool.master) as client:
        stat = client.request(CacheStat())
    assert isinstance(stat, CacheStatReply)
    assert stat.num_evicted > 0


def test_a_put_into_full_memory_waits_until_others_have_left(
    directory: Path, make_source: Callable[..., SourceMemory]
) -> None:
    """64 MiB hold 14 of these puts; the others wait for the master's victims, and none is refused."""
    source = make_source(16)
    with running_pool(directory, settings=["copy.room_wait_s=10"]) as pool:
        for seed in range(20):
            hashes = chain(16, seed=1000 * seed)
            reply = pool.put([source.block(i, hashes) for i in range(16)])
            assert reply.results == ["stored"] * 16, reply.why


def test_a_put_that_finds_no_room_in_its_time_says_what_stays(
    directory: Path, make_source: Callable[..., SourceMemory]
) -> None:
    orphan = ("report.orphan_after_s=3600", "copy.room_wait_s=0.3", "segment.size=8MiB")
    node = start_node(directory, f"tcp://127.0.0.1:{free_port()}", *orphan)
    try:
        pool = Pool(node, node.find(r"ready .*control=(\S+)"), "", directory)
        source = make_source(16)
        for seed in (0, 1000):
            pool.put([source.block(i, chain(16, seed=seed)) for i in range(16)])
        began_s = time.monotonic()
        hashes = chain(16, seed=2000)
        reply = pool.put([source.block(i, hashes) for i in range(16)])
        assert reply.results == ["exhausted"] * 16
        assert time.monotonic() - began_s >= 0.3
        assert "being written" in reply.why
        assert "leased" in reply.why
        assert reply.retry_after_ms
    finally:
        node.stop()


def test_a_full_node_without_a_master_refuses_then_helps_itself(
    directory: Path, make_source: Callable[..., SourceMemory]
) -> None:
    node = start_node(directory, f"tcp://127.0.0.1:{free_port()}", "report.orphan_after_s=1.0")
    try:
        pool = Pool(node, node.find(r"ready .*control=(\S+)"), "", directory)
        source = make_source(16)
        statuses = set()
        for seed in range(20):
            hashes = chain(16, seed=1000 * seed)
            statuses |= set(pool.put([source.block(i, hashes) for i in range(16)]).results)
        assert statuses in ({"stored", "exhausted"}, {"stored"})
        time.sleep(1.1)
        hashes = chain(16, seed=500_000)
        assert pool.put([source.block(i, hashes) for i in range(16)]).results == ["stored"] * 16
    finally:
        node.stop()


def test_a_flipped_byte_is_a_miss_and_the_node_drops_the_block(
    pool: Pool, make_source: Callable[..., SourceMemory]
) -> None:
    source, hashes = make_source(6), chain(6)
    assert pool.put([source.block(i, hashes) for i in range(6)]).results == ["stored"] * 6
    locations = pool.wait_until_sealed(hashes)
    with pool.segment_file.open("r+b") as segment:
        segment.seek(locations[3].offset + 5 * ROW + 17)
        byte = segment.read(1)
        segment.seek(-1, os.SEEK_CUR)
        segment.write(bytes([byte[0] ^ 1]))
    num_good, read, bad = read_all(source.engine, locations)
    assert num_good == 3
    assert [(location.hash, "layer 2" in why) for location, why in bad] == [(hashes[3], True)]
    arena = read.reshape(2 * NUM_LAYERS, 6, ROW)
    assert np.array_equal(arena[:, :3], source.array.reshape(2 * NUM_LAYERS, 6, ROW)[:, :3])
    assert BlockReader(source.engine).read_block(locations[3]) is None
    with SyncClient(pool.master) as client:
        for block_hash in (hashes[3], hashes[4]):
            client.request(BadReplica(hash=block_hash, node=NodeId("node-a"), why="test"))
    wait_for(lambda: len(pool.match(hashes)) == 3)
    assert len(pool.match(hashes[4:])) == 2, "a good block was dropped on a complaint"
    assert pool.put([source.block(3, hashes)]).results == ["stored"]
    assert len(pool.wait_until_sealed(hashes)) == 6


def test_a_put_over_a_damaged_trailer_replaces_it(
    pool: Pool, make_source: Callable[..., SourceMemory]
) -> None:
    """What no longer says what it is can neither agree nor conflict with anything."""
    source, hashes = make_source(1), chain(1)
    block = source.block(0, hashes, with_checksums=True)
    assert pool.put([block]).results == ["stored"]
    (location,) = pool.wait_until_sealed(hashes)
    assert pool.put([block]).results == ["already_sealed"]
    with pool.segment_file.open("r+b") as segment:
        segment.seek(location.offset + location.length)
        segment.write(b"garbage")
    assert pool.put([block]).results == ["stored"]
    (again,) = pool.wait_until_sealed(hashes)
    assert BlockReader(source.engine).read_block(again) is not None


def test_a_flipped_trailer_or_an_old_location_is_a_miss(
    pool: Pool, make_source: Callable[..., SourceMemory]
) -> None:
    source, hashes = make_source(3), chain(3)
    pool.put([source.block(i, hashes) for i in range(3)])
    locations = pool.wait_until_sealed(hashes)
    old = msgspec.structs.replace(locations[1], seal_checksum=locations[1].seal_checksum ^ 1)
    opened = BlockReader(source.engine).open([locations[0], old, locations[2]])
    assert (opened.num_good, len(opened.bad)) == (1, 1)
    gone = msgspec.structs.replace(
        locations[1], region=msgspec.structs.replace(locations[1].region, region_id=99)
    )
    opened = BlockReader(source.engine).open([locations[0], gone, locations[2]])
    assert (opened.num_good, len(opened.bad), len(opened.unreachable)) == (1, 0, 1)


SOURCE = """
import sys
from pathlib import Path
import msgspec, numpy as np
from daemons.core.ids import new_epoch
from daemons.transfer import GenerationTable, TransferEngine, allocate_shared
directory, size, transports = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
engine = TransferEngine(epoch=new_epoch(), unix_dir=directory, transports=transports)
memory = allocate_shared("source", size)
memory.array[:] = 1
table = GenerationTable(engine, 1)
print(msgspec.json.encode((engine.register(memory), table.guard(0))).decode(), flush=True)
for line in sys.stdin:
    table.advance(0)
    memory.array[:] = 2
    print("reused", flush=True)
"""


@pytest.fixture
def start_source(directory: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], Source]]]:
    processes: list[subprocess.Popen[str]] = []

    def start(size: int, transports: str) -> tuple[subprocess.Popen[str], Source]:
        process = subprocess.Popen(
            [sys.executable, "-c", SOURCE, str(directory), str(size), transports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        region, guard = msgspec.json.decode(
            process.stdout.readline(), type=tuple[RegionRef, Generation]
        )
        return process, Source(
            region=region, ranges=Strided(offset=0, row_bytes=1), generation=guard
        )

    yield start
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


BIG_ROW = 64 * 1024
BIG_BLOCK = 2 * NUM_LAYERS * BIG_ROW
NUM_BIG = 64


def big_blocks(source: Source, hashes: list[BlockHash]) -> list[PutBlock]:
    """Each from its own part of a source that is filled with one number."""
    return [
        PutBlock(
            meta=BlockMeta(
                hash=block_hash,
                parent=root_hash(NAMESPACE),
                namespace=NAMESPACE,
                depth=0,
                num_tokens=64,
                model="test",
            ),
            source=msgspec.structs.replace(
                source,
                ranges=Strided(
                    offset=index * BIG_BLOCK,
                    row_bytes=BIG_ROW,
                    num_rows=2 * NUM_LAYERS,
                    stride_bytes=BIG_ROW,
                ),
            ),
            num_layers=NUM_LAYERS,
        )
        for index, block_hash in enumerate(hashes)
    ]


def put_in_background(pool: Pool, blocks: list[PutBlock]) -> tuple[threading.Thread, list[object]]:
    answers: list[object] = []

    def put() -> None:
        try:
            with SyncClient(pool.control) as client:
                answers.append(put_blocks(client, blocks, timeout_s=30))
        except McError as error:
            answers.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    return thread, answers


def assert_only_right_bytes(pool: Pool, hashes: list[BlockHash], results: list[str]) -> None:
    """What was stored holds the first content, whole; the rest is not to be found."""
    engine = TransferEngine(epoch=new_epoch(), unix_dir=pool.directory)
    try:
        for block_hash, status in zip(hashes, results, strict=True):
            if status == "stored":
                (location,) = pool.wait_until_sealed([block_hash])
                payload = BlockReader(engine).read_block(location)
                assert payload == b"\1" * BIG_BLOCK
            else:
                assert pool.match([block_hash]) == []
    finally:
        engine.close()


@pytest.mark.parametrize("transports", ["shm,tcp", "tcp"])
def test_a_source_killed_in_mid_pull_seals_nothing_wrong(
    pool: Pool, start_source: Callable[..., tuple[subprocess.Popen[str], Source]], transports: str
) -> None:
    process, source = start_source(NUM_BIG * BIG_BLOCK, transports)
    hashes = [BlockHash(os.urandom(16)) for _ in range(NUM_BIG)]
    thread, answers = put_in_background(pool, big_blocks(source, hashes))
    time.sleep(0.03)
    process.kill()
    thread.join(20)
    (reply,) = answers
    assert isinstance(reply, PutReply)
    assert set(reply.results) <= {"stored", "failed", "exhausted"}
    assert_only_right_bytes(pool, hashes, list(reply.results))


@pytest.mark.parametrize("transports", ["shm,tcp", "tcp"])
def test_a_node_stopped_in_mid_pull_never_seals_a_reused_source(
    pool: Pool, start_source: Callable[..., tuple[subprocess.Popen[str], Source]], transports: str
) -> None:
    process, source = start_source(NUM_BIG * BIG_BLOCK, transports)
    hashes = [BlockHash(os.urandom(16)) for _ in range(NUM_BIG)]
    thread, answers = put_in_background(pool, big_blocks(source, hashes))
    time.sleep(0.02)
    pool.node.process.send_signal(signal.SIGSTOP)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "reused\n"
    pool.node.process.send_signal(signal.SIGCONT)
    thread.join(40)
    (reply,) = answers
    assert isinstance(reply, PutReply)
    assert set(reply.results) <= {"stored", "failed", "exhausted"}
    assert_only_right_bytes(pool, hashes, list(reply.results))
    late = [BlockHash(os.urandom(16))]
    assert pool.put(big_blocks(source, late)).results == ["failed"]


def test_a_new_master_hears_of_every_block(
    directory: Path, make_source: Callable[..., SourceMemory]
) -> None:
    port, source = free_port(), make_source(8)
    endpoint = f"tcp://127.0.0.1:{port}"
    settings = (
        f"node.listen={endpoint}",
        f"node.events=tcp://127.0.0.1:{free_port()}",
        "node.metrics=",
        f"node.state_dir={directory / 'master'}",
    )
    node = start_node(directory, endpoint)
    masters: list[Daemon] = []
    try:
        pool = Pool(node, node.find(r"ready .*control=(\S+)"), endpoint, directory)
        hashes = chain(8)
        before = pool.put([source.block(i, hashes) for i in range(4)])
        masters.append(Daemon("daemons.mc_master", *settings))
        assert before.results == ["stored"] * 4
        wait_for(lambda: is_answering(pool, hashes[:4]), 15)
        masters[0].process.kill()
        masters[0].process.wait()
        assert pool.put([source.block(i, hashes) for i in range(4, 8)]).results == ["stored"] * 4
        masters.append(Daemon("daemons.mc_master", *settings))
        wait_for(lambda: is_answering(pool, hashes), 15)
        assert read_all(source.engine, pool.match(hashes))[0] == 8
    finally:
        node.stop()
        for master in masters:
            master.stop()


def test_pins_hold_blocks_through_evictions_and_a_new_master(
    directory: Path, make_source: Callable[..., SourceMemory], capsys: pytest.CaptureFixture[str]
) -> None:
    port, source = free_port(), make_source(16)
    endpoint = f"tcp://127.0.0.1:{port}"
    settings = (
        f"node.listen={endpoint}",
        f"node.events=tcp://127.0.0.1:{free_port()}",
        "node.metrics=",
        f"node.state_dir={directory / 'master'}",
        "pool.lease_s=0.2",
    )
    node = start_node(directory, endpoint)
    masters = [Daemon("daemons.mc_master", *settings)]

    def cache(*arguments: str) -> tuple[int, str]:
        status = main(
            ["--endpoint", endpoint, "--timeout", "20", "--output", "json", "cache", *arguments]
        )
        shown = capsys.readouterr()
        return status, shown.out or shown.err

    def fill(first_seed: int) -> None:
        """More than the segment holds; each part is put again until it is in."""
        for seed in range(first_seed, first_seed + 16):
            hashes = chain(16, seed=1000 * seed)
            blocks = [source.block(i, hashes) for i in range(16)]
            wait_for(lambda b=blocks: "exhausted" not in pool.put(b).results, 15)  # type: ignore[misc]

    def num_kept() -> int:
        status, out = cache("list", "--hash-prefix", kept[0].hex())
        assert status == 0
        return len(json.loads(out)["blocks"])

    try:
        pool = Pool(node, node.find(r"ready .*control=(\S+)"), endpoint, directory)
        node.find(r"(joined master)")
        kept = chain(16)
        assert pool.put([source.block(i, kept) for i in range(16)]).results == ["stored"] * 16
        wait_for(lambda: num_kept() == 1)
        status, out = cache("pin", kept[15].hex(), "--hard", "--ttl", "600")
        assert (status, json.loads(out)["num_pinned"]) == (0, 16)
        fill(1)
        (block,) = json.loads(cache("list", "--hash-prefix", kept[0].hex())[1])["blocks"]
        assert block["pin"] == "hard"
        assert 590 < block["pin_left_s"] <= 600

        masters[0].process.kill()
        masters[0].process.wait()
        masters.append(Daemon("daemons.mc_master", *settings))
        wait_for(lambda: is_pinned(endpoint, 16), 15)
        fill(101)
        assert num_kept() == 1
        assert json.loads(cache("unpin", kept[15].hex())[1])["num_pinned"] == 0
        fill(201)
        wait_for(lambda: num_kept() == 0)
        status, out = cache("unpin", kept[15].hex())
        assert (status, json.loads(out)["num_changed"]) == (3, 0)
    finally:
        node.stop()
        for master in masters:
            master.stop()


def is_pinned(endpoint: str, num_blocks: int) -> bool:
    try:
        with SyncClient(endpoint, 1.0) as client:
            stat = client.request(CacheStat())
    except Unavailable:
        return False
    return isinstance(stat, CacheStatReply) and stat.num_pinned == num_blocks


def test_a_refused_put_says_that_all_is_pinned(
    pool: Pool, make_source: Callable[..., SourceMemory]
) -> None:
    source, seed = make_source(16), 0

    def put_and_pin() -> str:
        """Why the node refused it, if it did."""
        nonlocal seed
        seed += 1
        hashes = chain(16, seed=1000 * seed)
        reply = pool.put([source.block(i, hashes) for i in range(16)])
        time.sleep(0.02)  # what the master has not heard of by then is not pinned, and goes first
        with SyncClient(pool.master) as client:
            client.request(PinBlocks(hashes=hashes, level="hard"))
        return reply.why

    said = r"0 B leased to readers, [1-9][^,]* pinned hard"
    wait_for(lambda: bool(re.search(said, put_and_pin())))


def is_answering(pool: Pool, hashes: list[BlockHash]) -> bool:
    try:
        return len(pool.match(hashes)) == len(hashes)
    except Unavailable:
        return False


def test_sigterm_finishes_puts_and_leaves(
    pool: Pool, make_source: Callable[..., SourceMemory]
) -> None:
    source, hashes = make_source(16), chain(16)
    thread, answers = put_in_background(pool, [source.block(i, hashes) for i in range(16)])
    thread.join()
    pool.node.process.terminate()
    assert pool.node.process.wait(10) == 0
    assert isinstance(answers[0], PutReply)
    assert list(pool.directory.glob("shm/*/*.segment")), "kept for the next start"
    with SyncClient(pool.master) as client:
        reply = client.request(ListNodes())
    assert isinstance(reply, ListNodesReply)
    assert [listed.node.node for listed in reply.nodes if listed.state == "alive"] == []
    assert pool.match(hashes) == []


def test_hostile_control_bytes_do_not_stop_the_node(
    lonely: Pool, make_source: Callable[..., SourceMemory]
) -> None:
    host, _, port = lonely.control.removeprefix("tcp://").rpartition(":")
    random = np.random.default_rng(3)
    for _ in range(50):
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(random.bytes(int(random.integers(1, 500))))
    source, hashes = make_source(1), chain(1)
    assert lonely.put([source.block(0, hashes)]).results == ["stored"]


def test_a_start_that_fails_leaves_no_segment(lonely: Pool) -> None:
    late = start_node(
        lonely.directory, "tcp://127.0.0.1:9", f"node.listen={lonely.control}", "node.id=b"
    )
    try:
        assert late.process.wait(30) == 78
        late.find(r"(cannot listen)")
    finally:
        late.stop()
    assert [path.name for path in lonely.directory.glob("shm/*/*.segment")] == ["node-a.segment"]
