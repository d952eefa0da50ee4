"""A prefix is the same bytes in another slot, whatever the sizes of both; a copy that was given up is none."""

import threading
from types import SimpleNamespace

import numpy as np

from daemons.engine.arena.slot_copy import SlotCopier, SlotCopy
from daemons.engine.arena.slots import Slot, SlotSpace
from daemons.engine.geometry import KvGeometry
from daemons.engine.instance import Instance

GEOMETRY = KvGeometry(num_layers=3, num_kv_heads=2, head_dim=4, dtype="float32", block_tokens=64)


def arena() -> tuple[Instance, Slot, Slot]:
    space = SlotSpace(GEOMETRY, 1024, Slot, num_sequences=4)
    size = 1024 * GEOMETRY.bytes_per_token
    memory = SimpleNamespace(array=np.random.default_rng(5).integers(0, 255, size, np.uint8))
    instance = Instance(None, memory, None, None, space, None, None)
    return instance, space.allocate(256), space.allocate(700)


def test_a_prefix_arrives_whole_and_nothing_else_is_touched() -> None:
    instance, source, target = arena()
    before = instance.memory.array.copy()
    copy = SlotCopy(instance, source, target, 192)
    posted: list[object] = []
    copier = SlotCopier(posted.append)
    copier.start(copy, lambda: None)
    assert all(copy.wait_layer(layer) for layer in range(3))
    copier.close()
    assert (len(posted), copy.has_failed) == (1, False)
    for layer in range(3):
        for half in range(2):
            row = instance.half(source, layer, half, 192)
            assert np.array_equal(row, instance.half(target, layer, half, 192))
            offset = target.half_offset(layer, half, 0)
            before[offset : offset + row.nbytes] = row
    assert np.array_equal(instance.memory.array, before)


def test_a_copy_that_was_given_up_is_no_prefix() -> None:
    instance, source, target = arena()
    copy = SlotCopy(instance, source, target, 192)
    copy.cancel()
    copy.run()
    assert not copy.wait_layer(0)
    assert copy.has_failed


def test_a_copy_given_up_in_its_last_layer_does_not_become_whole() -> None:
    _, source, target = arena()
    halves = 0

    def half(*_place: object) -> np.ndarray:
        nonlocal halves
        halves += 1
        if halves == 4 * GEOMETRY.num_layers:
            copy.cancel()
        return np.zeros(1, np.uint8)

    copy = SlotCopy(SimpleNamespace(half=half, geometry=GEOMETRY), source, target, 192)
    copy.run()
    assert halves == 4 * GEOMETRY.num_layers
    assert copy.has_failed
    assert not copy.wait_layer(GEOMETRY.num_layers - 1)


def test_who_waits_goes_on_once_nothing_is_written_any_more() -> None:
    """Whoever hears that there is no prefix computes it, in the very place that was copied to."""
    _, source, target = arena()
    has_begun, may_go, written = threading.Event(), threading.Event(), list[int]()

    def half(*_place: object) -> np.ndarray:
        has_begun.set()
        may_go.wait(20)
        written.append(1)
        return np.zeros(1, np.uint8)

    copy = SlotCopy(SimpleNamespace(half=half, geometry=GEOMETRY), source, target, 192)
    running = threading.Thread(target=copy.run, daemon=True)
    running.start()
    assert has_begun.wait(20)
    copy.cancel()
    heard: list[tuple[bool, int]] = []
    waiting = threading.Thread(
        target=lambda: heard.append((copy.wait_layer(0), len(written))), daemon=True
    )
    waiting.start()
    waiting.join(0.05)
    may_go.set()
    waiting.join(20)
    running.join(20)
    assert heard == [(False, 4)]  # keys and values of one layer, there and here


def test_who_waits_for_a_copy_that_never_began_hears_of_the_end() -> None:
    _, source, target = arena()
    may_go, has_begun = threading.Event(), threading.Event()

    def half(*_place: object) -> np.ndarray:
        has_begun.set()
        may_go.wait(20)
        return np.zeros(1, np.uint8)

    instance = SimpleNamespace(half=half, geometry=GEOMETRY)
    first, second = (SlotCopy(instance, source, target, 192) for _ in range(2))
    posted: list[object] = []
    copier = SlotCopier(posted.append)
    copier.start(first, lambda: None)
    copier.start(second, lambda: None)
    assert has_begun.wait(20)
    heard: list[bool] = []
    waiting = threading.Thread(target=lambda: heard.append(second.wait_layer(0)), daemon=True)
    waiting.start()
    closing = threading.Thread(target=copier.close, daemon=True)
    closing.start()
    waiting.join(20)
    may_go.set()
    closing.join(20)
    assert (heard, len(posted)) == ([False], 2)
