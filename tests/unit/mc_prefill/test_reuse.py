"""What a prompt need not compute: what is in the arena and what comes from the pool, as one prefix."""

from types import SimpleNamespace

import numpy as np
import pytest
from kit.prefill_jobs import GEOMETRY

from daemons.engine.arena.slots import Slot, SlotSpace
from daemons.mc_prefill.reuse import Reuse, target_behind


class Load:
    """Of `num_blocks`; keeps in which order it was told to stop and waited for."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.loaded_bytes, self.elapsed_s = 100, 0.5
        self.asked: list[str] = []

    def wait_opened(self) -> int:
        return self.num_blocks

    def wait_layer(self, layer: int) -> int:
        self.asked.append(f"layer {layer}")
        return self.num_blocks

    def cancel(self) -> None:
        self.asked.append("cancel")
        self.num_blocks = 0


def copy(*, is_good: bool) -> SimpleNamespace:
    return SimpleNamespace(
        wait_layer=lambda _: is_good, has_failed=not is_good, cancel=lambda: None
    )


def test_blocks_of_the_arena_and_of_the_pool_are_one_prefix() -> None:
    reuse = Reuse(64, 3, copy=copy(is_good=True), load=Load(2))  # type: ignore[arg-type]
    assert (reuse.wait_opened(), reuse.wait_layer(0), reuse.num_blocks) == (5, 5, 5)
    assert (reuse.held_tokens, reuse.loaded_bytes, reuse.load_s) == (192, 100, 0.5)
    assert (Reuse(64, 3).wait_layer(2), Reuse(64).wait_opened(), Reuse(64).load_s) == (3, 0, 0.0)


def test_behind_a_copy_that_failed_nothing_is_loaded_nor_written_any_more() -> None:
    """The model computes from the first token on: a load that went on would write over that."""
    load = Load(2)
    reuse = Reuse(64, 3, copy=copy(is_good=False), load=load)  # type: ignore[arg-type]
    assert reuse.wait_opened() == 5
    assert reuse.wait_layer(1) == reuse.num_blocks == 0
    assert load.asked == ["cancel", "layer 1"]


def test_what_is_given_up_ends_in_both() -> None:
    load, ended = Load(2), list[str]()
    running = SimpleNamespace(cancel=lambda: ended.append("copy"))
    Reuse(64, 3, copy=running, load=load).cancel()  # type: ignore[arg-type]
    assert (ended, load.asked) == (["copy"], ["cancel"])


@pytest.mark.parametrize("num_held", [0, 1, 3])
def test_what_is_loaded_lands_behind_what_is_held(num_held: int) -> None:
    space = SlotSpace(GEOMETRY, 512, Slot, num_sequences=2)
    slot = space.allocate(512)
    memory = np.zeros(512 * GEOMETRY.bytes_per_token, np.uint8)

    def half(slot: Slot, layer: int, side: int, num_tokens: int) -> np.ndarray:
        first = slot.half_offset(layer, side, 0)
        return memory[first : first + num_tokens * GEOMETRY.bytes_per_token_layer_half]

    instance = SimpleNamespace(geometry=GEOMETRY, half=half)
    target = target_behind(instance, slot, num_held)  # type: ignore[arg-type]
    target.half_of(0, 1, 64)[:] = 7
    row = GEOMETRY.bytes_per_token_layer_half
    first = slot.half_offset(0, 1, 64 * num_held)
    assert set(memory[first : first + 64 * row]) == {7}
    assert np.count_nonzero(memory) == 64 * row
    assert (target.num_layers, target.block_tokens) == (GEOMETRY.num_layers, 64)
