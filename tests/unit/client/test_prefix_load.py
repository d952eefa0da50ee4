"""A prefix load that loses blocks, time or its worker: what is said to be good is, and nothing is written behind it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from daemons.client.prefix_load import LoadTarget, PrefixLoad, PrefixLoader
from daemons.core.errors import TransferError
from daemons.rpc import Loop

LAYERS, BLOCK_TOKENS, ROW_BYTES, BLOCKS = 4, 16, 1 << 18, 3
"""Two rows of so many bytes make a group of one layer."""


LOCATION = SimpleNamespace(tier="dram")


class Opened:
    """Blocks whose bytes are all `layer + 1`; `good_by_layer` says how many verify from a layer on."""

    num_layers, row_bytes, num_good = LAYERS, ROW_BYTES, BLOCKS

    def __init__(self) -> None:
        self.bad: list[tuple[str, str]] = []
        self.good_by_layer: dict[int, int] = {}
        self.before_write = lambda _: None

    def read_layers(self, first, targets, num_blocks, *, timeout_s):
        for layer, halves in enumerate(targets, start=first):
            self.before_write(layer)
            for half in halves:
                assert len(half) == num_blocks * self.row_bytes
                half[:] = layer + 1
            good = self.good_by_layer.get(layer, self.num_good)
            if good < self.num_good:
                self.num_good = good
                self.bad.append((f"block {good}", "does not match"))
        return self.num_good


class Reader:
    def __init__(self) -> None:
        self.opened = Opened()

    def open(self, locations, *, spares, timeout_s):
        return self.opened


@pytest.fixture
def reader():
    return Reader()


@pytest.fixture
def memory():
    return np.zeros((LAYERS, 2, BLOCKS * ROW_BYTES), np.uint8)


@pytest.fixture
def target(memory):
    def half_of(layer: int, half: int, num_tokens: int):
        return memory[layer, half, : num_tokens // BLOCK_TOKENS * ROW_BYTES]

    return LoadTarget(half_of, LAYERS, BLOCK_TOKENS)


def make_load(reader, target, timeout_s=5.0):
    return PrefixLoad(reader, [LOCATION] * BLOCKS, target, timeout_s)


def test_all_layers_arrive(reader, target, memory):
    load = make_load(reader, target)
    load.run()
    assert load.wait_opened() == load.wait_layer(LAYERS - 1) == load.num_blocks == BLOCKS
    assert load.loaded_bytes == memory.nbytes
    assert all((memory[layer] == layer + 1).all() for layer in range(LAYERS))


@pytest.mark.parametrize("num_good", [0, 1, 2])
def test_a_bad_block_shortens_the_prefix_and_is_reported(reader, target, num_good):
    reader.opened.good_by_layer = {1: num_good}
    load = make_load(reader, target)
    load.run()
    assert (load.num_blocks, load.num_asked) == (num_good, BLOCKS)
    assert load.bad == [(f"block {num_good}", "does not match")]
    assert load.wait_layer(LAYERS - 1) == num_good


def test_blocks_of_another_shape_are_not_written(reader, target, memory):
    reader.opened.num_layers = LAYERS + 1
    load = make_load(reader, target)
    load.run()
    assert load.wait_opened() == 0
    assert not memory.any()


@pytest.mark.parametrize("error", [TransferError("gone"), ValueError("a bug")])
def test_a_worker_that_breaks_ends_the_load(reader, target, error):
    def fail(layer: int) -> None:
        if layer == 2:
            raise error

    reader.opened.before_write = fail
    load = make_load(reader, target)
    load.run()
    assert load.wait_layer(LAYERS - 1) == load.num_blocks == 0


def test_who_gave_up_waiting_is_not_overwritten(reader, target, memory):
    """The deadline passes in the middle of a write: the waiter goes on only when the write has ended."""
    may_write, is_writing = threading.Event(), threading.Event()

    def stall(_: int) -> None:
        is_writing.set()
        may_write.wait(10)

    reader.opened.before_write = stall
    load = make_load(reader, target, timeout_s=0.05)
    with ThreadPoolExecutor(2) as threads:
        threads.submit(load.run)
        assert is_writing.wait(10)
        waiter = threads.submit(load.wait_layer, 0)
        with pytest.raises(TimeoutError):
            waiter.result(timeout=0.3)
        may_write.set()
        assert waiter.result(timeout=10) == 0
        memory[:] = 99
        load.run()
    assert (memory == 99).all()


def test_a_load_that_never_began_does_not_hold_anybody(reader, target):
    load = make_load(reader, target, timeout_s=0.05)
    assert load.wait_opened() == 0


def test_a_loader_leaves_the_last_token_to_the_model_and_always_answers(reader, target):
    loop, done = Loop(), []
    reader.opened.before_write = lambda _: 1 // 0
    loader = PrefixLoader(loop, reader, None, num_workers=1, timeout_s=5.0)
    try:
        assert loader.start([LOCATION], BLOCK_TOKENS, target, done.append) is None
        assert loader.start([], 100, target, done.append) is None
        load = loader.start([LOCATION] * BLOCKS, BLOCKS * BLOCK_TOKENS, target, done.append)
        assert load is not None
        assert load.num_asked == BLOCKS - 1
        assert loop.run_until(lambda: bool(done), 20)
        assert done == [load]
    finally:
        loader.close()
        loop.close()
