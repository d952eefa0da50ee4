"""A prompt's KV comes from the pool and from prefill, in any order; what is decoded from is whole, or nothing is."""

import socket
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from kit.decode_bench import GEOMETRY, POOL, Bench

from daemons.core.errors import ProtocolError, TransferError, Unavailable
from daemons.core.ids import BlockHash
from daemons.mc_decode.request import Request
from daemons.protocol.block import BlockLocation
from daemons.protocol.request import Cancel, LayersReady
from daemons.store.segment.seal import Trailer, layer_checksums, seal, trailer_length
from daemons.store.segment.segment import Segment
from daemons.transfer import allocate_shared

pytestmark = pytest.mark.timeout(60)
BLOCK = GEOMETRY.block_bytes


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


class Pool:
    """Sealed blocks of random bytes in a segment that the decode node can read."""

    def __init__(self, bench: Bench, hashes: list[BlockHash]) -> None:
        self.segment = Segment(allocate_shared("test-segment", 1 << 20))
        region = bench.transfer.register(self.segment.memory)
        random = np.random.default_rng(2)
        self.payloads: list[bytes] = []
        self.locations: list[BlockLocation] = []
        for block_hash in hashes:
            payload = random.bytes(BLOCK)
            checksums = layer_checksums(memoryview(payload), GEOMETRY.num_layers)
            packed, checksum = seal(Trailer(block_hash, 1, BLOCK, tuple(checksums)))
            offset = self.segment.allocate(BLOCK + trailer_length(GEOMETRY.num_layers))
            whole = np.frombuffer(payload + packed, np.uint8)
            self.segment.array[offset : offset + whole.nbytes] = whole
            self.payloads.append(payload)
            self.locations.append(
                BlockLocation(
                    hash=block_hash,
                    node=POOL,
                    region=region,
                    offset=offset,
                    length=BLOCK,
                    trailer_bytes=len(packed),
                    version=1,
                    seal_checksum=checksum,
                    num_layers=GEOMETRY.num_layers,
                )
            )

    def damage(self, index: int, layer: int) -> None:
        offset = self.locations[index].offset + layer * BLOCK // GEOMETRY.num_layers
        self.segment.array[offset] ^= 1

    def put_into_prefill(self, bench: Bench, request_id: str, count: int) -> None:
        """The prefill node has loaded the same blocks into its slot."""
        slot = bench.prefill.prompts[request_id].slot  # type: ignore[index]
        for index, payload in enumerate(self.payloads[:count]):
            halves = np.frombuffer(payload, np.uint8).reshape(GEOMETRY.num_layers, 2, -1)
            for layer in range(GEOMETRY.num_layers):
                for half in range(2):
                    whole = bench.prefill.instance.half(slot, layer, half, 16 * (index + 1))
                    whole[-halves.shape[2] :] = halves[layer, half]


def make_matched(bench: Bench, num_blocks: int) -> tuple[Pool, str]:
    """A request of 100 tokens whose first blocks are in the pool, as far as its prefill node."""
    pool = Pool(bench, [BlockHash(bytes([i]) * 16) for i in range(num_blocks)])
    answer = bench.ask(100, matched=pool.locations)
    bench.at_prefill(answer)
    return pool, answer.request_id


def joined(bench: Bench) -> Request:
    bench.until(lambda: bench.joined)
    return bench.joined[-1]


def test_what_prefill_computes_is_pulled_as_it_appears(bench: Bench) -> None:
    answer = bench.ask(100)
    bench.at_prefill(answer)
    bench.prefill.start(answer.request_id)
    bench.prefill.compute(answer.request_id, 0, 64)
    bench.settle()
    bench.prefill.compute(answer.request_id, 64, 100)
    bench.settle()
    assert not bench.joined, "the first token is not there yet"
    assert not bench.prefill.pulled
    bench.prefill.reply(answer.request_id)
    request = joined(bench)
    assert bench.has_same_kv(request)
    assert request.pulled_bytes == 100 * GEOMETRY.bytes_per_token
    bench.until(lambda: bench.prefill.pulled)


@pytest.mark.parametrize("num_blocks", [1, 3, 6])
def test_matched_blocks_come_from_the_pool_and_are_not_pulled_again(
    bench: Bench, num_blocks: int
) -> None:
    pool, request_id = make_matched(bench, num_blocks)
    pool.put_into_prefill(bench, request_id, num_blocks)
    bench.prefill.start(request_id)  # type: ignore[arg-type]
    bench.prefill.compute(request_id, 16 * num_blocks)  # type: ignore[arg-type]
    bench.prefill.reply(request_id, num_reused=16 * num_blocks)  # type: ignore[arg-type]
    request = joined(bench)
    assert bench.has_same_kv(request)
    assert request.pulled_bytes == (100 - 16 * num_blocks) * GEOMETRY.bytes_per_token
    assert request.timing(0.0).loaded_bytes == num_blocks * BLOCK


@pytest.mark.parametrize(("bad", "layer"), [(0, 0), (1, 1), (2, 0)])
def test_bad_block_of_the_pool_is_pulled_from_prefill(bench: Bench, bad: int, layer: int) -> None:
    """Whether prefill has loaded a good copy, or found the same and computed."""
    pool = Pool(bench, [BlockHash(bytes([i]) * 16) for i in range(3)])
    pool.damage(bad, layer)
    for num_reused in (48, 16 * bad):
        answer = bench.ask(100, matched=pool.locations)
        bench.at_prefill(answer)
        pool.put_into_prefill(bench, answer.request_id, 3)
        bench.prefill.start(answer.request_id)
        bench.prefill.compute(answer.request_id, num_reused)
        bench.prefill.reply(answer.request_id, num_reused=num_reused)
        bench.until(lambda: bench.joined)
        assert bench.has_same_kv(bench.joined.pop())


def test_blocks_that_only_prefill_has_loaded_are_pulled_from_it(bench: Bench) -> None:
    answer = bench.ask(100)
    bench.at_prefill(answer)
    bench.prefill.start(answer.request_id)
    bench.prefill.compute(answer.request_id, 48)
    bench.prefill.reply(answer.request_id, num_reused=48)
    assert bench.has_same_kv(joined(bench))


def test_bypass_loads_nothing(bench: Bench) -> None:
    pool = Pool(bench, [BlockHash(bytes([1]) * 16)])
    answer = bench.ask(100, matched=pool.locations, cache="bypass")
    bench.at_prefill(answer)
    asked = bench.prefill.prompts[answer.request_id].message
    assert (len(asked.matched), asked.put_target, asked.cache) == (0, None, "bypass")
    bench.prefill.serve(answer.request_id)
    assert joined(bench).load is None


@pytest.mark.parametrize(
    "ready",
    [
        LayersReady(first_layer=0, last_layer=2, start=0, end=100),
        LayersReady(first_layer=-1, last_layer=1, start=0, end=100),
        LayersReady(first_layer=1, last_layer=0, start=0, end=100),
        LayersReady(first_layer=0, last_layer=1, start=0, end=101),
        LayersReady(first_layer=0, last_layer=1, start=-1, end=100),
        LayersReady(first_layer=0, last_layer=1, start=50, end=50),
    ],
)
def test_ranges_outside_the_prompt_end_it_before_a_byte_is_moved(
    bench: Bench, ready: LayersReady
) -> None:
    answer = bench.ask(100)
    bench.at_prefill(answer)
    bench.prefill.start(answer.request_id).call.part(ready)
    bench.until(lambda: answer.end)
    assert isinstance(answer.error, ProtocolError)
    assert bench.requests.num_live == 0


def test_layers_before_their_slot_was_named_end_it(bench: Bench) -> None:
    answer = bench.ask(100)
    bench.at_prefill(answer)
    bench.prefill.compute(answer.request_id)
    bench.until(lambda: answer.end)
    assert isinstance(answer.error, ProtocolError)


def test_source_that_was_reused_is_never_decoded_from(bench: Bench) -> None:
    answer = bench.ask(100)
    bench.at_prefill(answer)
    bench.prefill.start(answer.request_id)
    bench.prefill.void(answer.request_id)
    bench.prefill.compute(answer.request_id)
    bench.prefill.reply(answer.request_id)
    bench.until(lambda: answer.end)
    assert isinstance(answer.error, TransferError)
    assert "prefill node p-1" in answer.error.message
    assert not bench.joined
    bench.until(lambda: bench.requests.num_live == 0 and bench.prefill.cancelled)


def test_prefill_node_that_is_gone_is_named(bench: Bench) -> None:
    answer = bench.ask(100)
    bench.at_prefill(answer)
    bench.prefill.server.close()
    bench.until(lambda: answer.end)
    assert isinstance(answer.error, Unavailable)
    assert answer.error.message.startswith("prefill node p-1: ")
    assert bench.requests.num_live == 0
    bench.prefill = type(bench.prefill)(bench)


@pytest.mark.parametrize(("timeout_s", "left_s"), [(600.0, 120.0), (30.0, 30.0)])
def test_prefill_gets_no_more_time_than_the_request_has(
    bench: Bench, timeout_s: float, left_s: float
) -> None:
    answer = bench.ask(100, timeout_s=timeout_s)
    bench.at_prefill(answer)
    call = bench.prefill.prompts[answer.request_id].call
    assert call.deadline_s - bench.clock.now_s == pytest.approx(left_s, abs=0.01)


def test_prefill_that_says_nothing_is_given_up_in_time(bench: Bench) -> None:
    answer = bench.ask(100)
    bench.at_prefill(answer)
    bench.settle()
    bench.advance(120.1)
    bench.until(lambda: answer.end)
    assert "prefill node p-1" in answer.error.message
    assert "did not answer" in answer.error.message


def test_slot_stays_while_a_pull_writes_into_it() -> None:
    """A source that accepts and says nothing holds the pull; cancelling must not give its target away."""
    bench = Bench(transfer_timeout_s=0.4)
    silent = socket.create_server(("127.0.0.1", 0))
    try:
        answer = bench.ask(100)
        bench.at_prefill(answer)
        prompt = bench.prefill.prompts[answer.request_id]
        source = bench.prefill.instance.source(prompt.slot, 0, 100)
        address = msgspec.structs.replace(
            source.region.address,
            tcp=f"127.0.0.1:{silent.getsockname()[1]}",
            epoch=source.region.address.epoch + 1,
        )
        region = msgspec.structs.replace(source.region, address=address)
        bench.prefill.start(answer.request_id, kv=msgspec.structs.replace(source, region=region))
        bench.prefill.compute(answer.request_id)
        bench.settle(0.1)
        bench.client.post(Cancel(request_id=answer.request_id))
        bench.until(lambda: answer.end)
        assert bench.instance.arena.num_live == 1
        bench.until(lambda: bench.instance.arena.num_live == 0)
        assert bench.requests.num_live == 0
    finally:
        silent.close()
        bench.close()
