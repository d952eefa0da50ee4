"""The first attempt at a batch: what it brings is verified, and what it cannot bring is left out without an error."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import msgspec
import numpy as np
import pytest

from daemons.client.node_health import NodeHealth
from daemons.client.objects import together
from daemons.client.objects.cache import Found
from daemons.client.objects.format import FOOTER_BYTES, PIECE_BYTES, Footer, pack_footer
from daemons.client.objects.reader import Place
from daemons.client.objects.together import Together
from daemons.core.clock import ManualClock
from daemons.core.errors import Unavailable
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.block import BlockLocation
from daemons.store.segment.seal import Trailer, payload_checksums, seal
from daemons.transfer import ByteArray, TransferEngine

SIZES = (10, 5000, PIECE_BYTES, 2 * PIECE_BYTES + 7)


class Node:
    """Holds values of SIZES, sealed, and is reached over TCP alone."""

    def __init__(self, name: str) -> None:
        self.engine = TransferEngine(transports=("tcp",))
        random = np.random.default_rng(len(name))
        self.values = [random.bytes(size) for size in SIZES]
        stored, sealed = b"", []
        for number, value in enumerate(self.values):
            payload = value + pack_footer(Footer(len(value)))
            checksums = tuple(payload_checksums(memoryview(payload), 0, PIECE_BYTES))
            key = BlockHash(bytes([number]) * 16)
            trailer = Trailer(key, 1, len(payload), checksums, PIECE_BYTES)
            packed, checksum = seal(trailer)
            sealed.append((trailer, len(stored), len(packed), checksum))
            stored += payload + packed
        self.memory = np.frombuffer(bytearray(stored), np.uint8)
        region = self.engine.register(self.memory)
        self.locations = [
            BlockLocation(
                node=NodeId(name),
                region=region,
                hash=trailer.hash,
                version=1,
                offset=offset,
                length=trailer.length,
                trailer_bytes=trailer_bytes,
                num_layers=trailer.num_layers,
                seal_checksum=checksum,
            )
            for trailer, offset, trailer_bytes, checksum in sealed
        ]

    def found(self, num_replicas: int = 1) -> list[Found]:
        return [
            Found([Place(at)] * num_replicas, at.length - FOOTER_BYTES, 1e9)
            for at in self.locations
        ]


class Bench:
    def __init__(self) -> None:
        self.nodes = [Node("n"), Node("node")]
        self.reader = TransferEngine(transports=("tcp",))
        self.health = NodeHealth(clock=ManualClock())
        self.together = Together(self.reader, self.health)

    def read(
        self, found: Sequence[object], targets: Sequence[ByteArray] | None = None
    ) -> dict[int, bytes]:
        brought = self.together.read(range(len(found)), found, targets, time.monotonic() + 20.0)
        return {index: body.tobytes() for index, _, body in brought}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(together, "PATIENT_S", 20.0)  # nobody is silent here, whatever else runs
    made = Bench()
    with ExitStack() as stack:
        for node in made.nodes:
            stack.enter_context(node.engine)
        stack.enter_context(made.reader)
        yield made


def test_values_of_several_nodes_come_each_with_its_own_index(bench: Bench) -> None:
    first, second = bench.nodes
    found = [each for pair in zip(first.found(), second.found(), strict=True) for each in pair]
    wanted = [each for pair in zip(first.values, second.values, strict=True) for each in pair]
    assert bench.read(found) == dict(enumerate(wanted))


def test_a_share_of_a_batch_that_begins_elsewhere_brings_all_of_its_values(bench: Bench) -> None:
    first, second = bench.nodes
    found = [*first.found(), *second.found()]
    wanted = dict(enumerate([*first.values, *second.values]))
    for begin in range(1, len(SIZES)):
        share = range(begin, len(found))
        brought = bench.together.read(share, found, None, time.monotonic() + 20.0)
        assert {index: body.tobytes() for index, _, body in brought} == {
            index: wanted[index] for index in share
        }


def test_targets_are_filled_where_they_fit_and_can_be_written(bench: Bench) -> None:
    node = bench.nodes[0]
    targets = [np.zeros(size, np.uint8) for size in SIZES]
    targets[1] = np.zeros(SIZES[1] + 1, np.uint8)
    targets[2].flags.writeable = False
    brought = bench.read(node.found(), targets)
    assert brought == {0: node.values[0], 3: node.values[3]}
    assert targets[3].tobytes() == node.values[3]
    assert not targets[1].any()


def test_a_value_that_does_not_verify_is_left_out_alone(bench: Bench) -> None:
    node = bench.nodes[0]
    node.memory[node.locations[1].offset] ^= 1
    brought = bench.read(node.found())
    assert brought == {index: node.values[index] for index in (0, 2, 3)}


def test_what_was_not_found_or_is_not_in_dram_is_left_to_others(bench: Bench) -> None:
    node = bench.nodes[0]
    found: list[object] = [*node.found()]
    on_ssd = node.locations[1]
    found[0] = None
    found[1] = Found([Place(msgspec.structs.replace(on_ssd, tier="ssd"))], SIZES[1], 1e9)
    assert bench.read(found) == {index: node.values[index] for index in (2, 3)}


def test_a_node_that_is_gone_costs_its_own_values_and_is_suspect_where_there_is_another_replica(
    bench: Bench,
) -> None:
    gone, there = bench.nodes
    gone.engine.close()
    found = [*gone.found(num_replicas=2), *there.found()]
    brought = bench.read(found)
    assert brought == {len(SIZES) + index: value for index, value in enumerate(there.values)}
    assert bench.health.is_suspect(gone.locations[0])
    assert not bench.health.is_suspect(there.locations[0])


def test_the_only_holder_is_not_in_doubt_after_one_attempt(bench: Bench) -> None:
    gone = bench.nodes[0]
    gone.engine.close()
    assert bench.read(gone.found()) == {}
    assert not bench.health.is_suspect(gone.locations[0])


def test_a_suspect_node_is_not_asked(bench: Bench) -> None:
    node = bench.nodes[0]
    bench.health.failed(node.locations[0], Unavailable("silent"))
    assert bench.read(node.found()) == {}
