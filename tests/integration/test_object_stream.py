"""Blocks of objects over a connection: what arrived whole is good, whatever happened to those beside it."""

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from daemons.client.objects.format import FOOTER_BYTES, PIECE_BYTES, Footer, pack_footer
from daemons.client.objects.stream import Arriving, receive
from daemons.core.errors import Unavailable
from daemons.core.ids import BlockHash, Epoch, NodeId
from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import RegionRef
from daemons.store.segment.seal import BadSeal, Trailer, payload_checksums, seal
from daemons.transfer import (
    ByteArray,
    Cancelled,
    NoTurn,
    Read,
    ReadBatch,
    TransferEngine,
    contiguous,
)
from daemons.transfer.transports.stream import MAX_CONNECTIONS, StreamPool

SIZES = (0, 1, 5000, PIECE_BYTES - 60, PIECE_BYTES, 2 * PIECE_BYTES + 7)


class Sealed:
    """Values of SIZES in one region, each a block as a node seals it; one more is a chunk without a footer."""

    def __init__(self, engine: TransferEngine, piece_bytes: int = PIECE_BYTES) -> None:
        random = np.random.default_rng(3)
        self.values = [random.bytes(size) for size in (*SIZES, 5000)]
        stored, self.spans, seals = b"", [], []
        for number, value in enumerate(self.values):
            footer = pack_footer(Footer(len(value))) if number < len(SIZES) else b""
            payload = memoryview(value + footer)
            checksums = tuple(payload_checksums(payload, 0, piece_bytes))
            trailer = Trailer(
                BlockHash(bytes([number]) * 16), 1, len(payload), checksums, piece_bytes
            )
            packed, checksum = seal(trailer)
            self.spans.append((len(stored), len(payload), len(packed)))
            seals.append((trailer, checksum))
            stored += bytes(payload) + packed
        self.memory = np.frombuffer(bytearray(stored), np.uint8)
        region = engine.register(self.memory)
        self.locations = [
            BlockLocation(
                node=NodeId("node"),
                region=region,
                hash=trailer.hash,
                version=trailer.version,
                offset=offset,
                length=length,
                trailer_bytes=trailer_bytes,
                num_layers=trailer.num_layers,
                seal_checksum=checksum,
            )
            for (offset, length, trailer_bytes), (trailer, checksum) in zip(
                self.spans, seals, strict=True
            )
        ]

    def arriving(self) -> tuple[list[Arriving], list[ByteArray]]:
        bodies = [np.empty(len(value), np.uint8) for value in self.values]
        footers = [FOOTER_BYTES] * len(SIZES) + [0]
        return [
            Arriving(at, body, footer_bytes=footer_bytes)
            for at, body, footer_bytes in zip(self.locations, bodies, footers, strict=True)
        ], bodies


@pytest.fixture
def owner() -> Iterator[TransferEngine]:
    with TransferEngine(transports=("tcp",)) as engine:
        yield engine


@pytest.fixture
def reader() -> Iterator[TransferEngine]:
    with TransferEngine(transports=("tcp",)) as engine:
        yield engine


@pytest.mark.parametrize("piece_bytes", [PIECE_BYTES, 3000])
def test_blocks_of_all_lengths_come_by_one_request(
    owner: TransferEngine, reader: TransferEngine, piece_bytes: int
) -> None:
    sealed = Sealed(owner, piece_bytes)
    arriving, bodies = sealed.arriving()
    assert not any(each.is_good for each in arriving), "nothing has arrived"
    receive(reader, (sealed.locations[0], None), arriving, 20.0)
    assert all(each.is_good for each in arriving)
    assert [body.tobytes() for body in bodies] == sealed.values
    footers = [None if each.footer is None else each.footer.value_bytes for each in arriving]
    assert footers == [*SIZES, None]


def test_a_connection_that_ended_while_it_was_idle_is_no_failure_of_reads_that_report(
    owner: TransferEngine,
) -> None:
    sealed = Sealed(owner)
    host, port = owner.address.tcp.rsplit(":", 1)
    made: list[socket.socket] = []

    def connect(timeout_s: float) -> socket.socket:
        made.append(socket.create_connection((host, int(port)), timeout_s))
        return made[-1]

    pool, reported = StreamPool(connect), Counter[int]()
    for _ in range(2):
        read = Read.into(contiguous(0, 4096), np.empty(4096, np.uint8))
        batch = ReadBatch(sealed.locations[0].region, [read], timeout_s=20.0)
        batch.on_read = lambda index: reported.update([index])
        pool.read(batch)
        made[-1].shutdown(socket.SHUT_RDWR)
    pool.close()
    assert (len(made), reported[0]) == (2, 2)


def test_who_waits_for_a_connection_of_its_own_process_says_so(reader: TransferEngine) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        silent.settimeout(20.0)
        address = msgspec.structs.replace(
            reader.address, tcp=f"127.0.0.1:{silent.getsockname()[1]}", epoch=Epoch(7)
        )
        region = RegionRef(address=address, region_id=1, size_bytes=4096)

        def batch(timeout_s: float) -> ReadBatch:
            read = Read.into(contiguous(0, 4096), np.empty(4096, np.uint8))
            return ReadBatch(region, [read], timeout_s=timeout_s, cancelled=is_over)

        is_over = threading.Event()
        with ThreadPoolExecutor(MAX_CONNECTIONS) as others, contextlib.ExitStack() as accepted:
            running = [others.submit(reader.run, batch(60.0)) for _ in range(MAX_CONNECTIONS)]
            for _ in running:
                accepted.enter_context(silent.accept()[0])
            with pytest.raises(NoTurn, match="this process had all its 8 connections"):
                reader.run(batch(0.1))
            is_over.set()
            assert all(isinstance(each.exception(20.0), Cancelled) for each in running)


def test_a_changed_byte_spoils_its_own_block_alone(
    owner: TransferEngine, reader: TransferEngine
) -> None:
    sealed = Sealed(owner)
    for number, (offset, length, trailer_bytes) in enumerate(sealed.spans):
        for position in {0, length // 2, length - 1, length, length + trailer_bytes - 1}:
            sealed.memory[offset + position] ^= 1
            arriving, _ = sealed.arriving()
            receive(reader, (sealed.locations[0], None), arriving, 20.0)
            sealed.memory[offset + position] ^= 1
            good = [each.is_good for each in arriving]
            assert good == [other != number for other in range(len(good))]


def test_a_transfer_that_fails_makes_nothing_good(
    owner: TransferEngine, reader: TransferEngine
) -> None:
    sealed = Sealed(owner)
    arriving, _ = sealed.arriving()
    owner.close()
    with pytest.raises(Unavailable):
        receive(reader, (sealed.locations[0], None), arriving, 20.0)
    assert not any(each.is_good for each in arriving)
    with pytest.raises(BadSeal):
        Arriving(sealed.locations[1], np.empty(2, np.uint8))
