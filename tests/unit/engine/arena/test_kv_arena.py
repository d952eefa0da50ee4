import mmap

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from daemons.core.errors import Exhausted
from daemons.engine.arena.kv_arena import KvArena, KvSlot
from daemons.engine.geometry import CHUNK_TOKENS, KvGeometry

GEOMETRY = KvGeometry(num_layers=2, num_kv_heads=3, head_dim=4, dtype="bfloat16")


def test_geometry_counts_bytes() -> None:
    assert GEOMETRY.bytes_per_token_layer_half == 24
    assert GEOMETRY.layer_bytes(10) == 480
    assert GEOMETRY.bytes_per_token == 96
    assert GEOMETRY.block_bytes == 96 * 64
    smollm = KvGeometry(num_layers=30, num_kv_heads=3, head_dim=64, dtype="bfloat16")
    assert smollm.bytes_per_token == 23040


def test_block_that_straddles_chunks_is_refused() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        KvGeometry(1, 1, 8, "float32", block_tokens=96)


def test_tensors_and_byte_ranges_show_the_same_memory() -> None:
    with mmap.mmap(-1, KvArena.arena_bytes(GEOMETRY, 1024)) as memory:
        arena = KvArena(GEOMETRY, 1024, memoryview(memory))
        arena.allocate(256)
        slot = arena.allocate(300)
        slot.kv[:] = torch.arange(slot.kv.numel()).view_as(slot.kv)
        for layer in range(2):
            for half in range(2):
                offset = slot.half_offset(layer, half, 64)
                length = 64 * GEOMETRY.bytes_per_token_layer_half
                raw = np.frombuffer(memory, dtype=np.uint8, count=length, offset=offset)
                expected = slot.kv[layer, half, 64:128].contiguous().view(torch.uint8)
                assert raw.tobytes() == expected.numpy().tobytes()
                row = slot.arena_row(layer, half, 64)
                assert torch.equal(arena.rows[row], slot.kv[layer, half, 64])
                del raw
        assert slot.keys[1].data_ptr() == slot.kv[1, 0].data_ptr()
        assert slot.values[1].data_ptr() == slot.kv[1, 1].data_ptr()
        del slot, arena, expected


def test_attention_views_follow_the_length_asked_for() -> None:
    slot = KvArena(GEOMETRY, 1024).allocate(1024)
    for num_tokens in (256, 512, 512, 256):
        keys, values = slot.attention_views(num_tokens)[1]
        assert keys.shape == values.shape == (1, 3, num_tokens, 4)
        assert keys.data_ptr() == slot.keys[1].data_ptr()
        assert values.data_ptr() == slot.values[1].data_ptr()


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="needs"):
        KvArena(GEOMETRY, 1024, memoryview(bytearray(100)))


def test_full_arena_says_what_is_left() -> None:
    arena = KvArena(GEOMETRY, 1000)
    assert arena.capacity_tokens == 1024
    first = arena.allocate(257)
    arena.allocate(256)
    arena.free(first)
    assert (arena.free_tokens, arena.largest_free_tokens) == (768, 512)
    with pytest.raises(Exhausted, match="768 of 1024"):
        arena.allocate(513)


def test_sequences_are_counted() -> None:
    arena = KvArena(GEOMETRY, 1024, num_sequences=1)
    slot = arena.allocate(1)
    with pytest.raises(Exhausted, match="all 1 sequences"):
        arena.allocate(1)
    arena.free(slot)
    assert arena.allocate(1).index == slot.index


class ArenaMachine(RuleBasedStateMachine):
    """Live slots keep their bytes, whatever is allocated and freed around them."""

    slots: Bundle[tuple[KvSlot, float]] = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.arena = KvArena(GEOMETRY, 12 * CHUNK_TOKENS, num_sequences=6)
        self.num_live = 0
        self.mark = 0.0

    @rule(target=slots, num_tokens=st.integers(1, 5 * CHUNK_TOKENS))
    def allocate(self, num_tokens: int) -> tuple[KvSlot, float] | object:
        wanted = -(-num_tokens // CHUNK_TOKENS) * CHUNK_TOKENS
        fits = wanted <= self.arena.largest_free_tokens and self.num_live < 6
        try:
            slot = self.arena.allocate(num_tokens)
        except Exhausted:
            assert not fits
            return st.nothing()
        assert fits
        assert slot.capacity_tokens == wanted
        assert slot.finite_tokens == 0
        self.num_live += 1
        self.mark = (self.mark + 1) % 256
        slot.kv.fill_(self.mark)
        return slot, self.mark

    @rule(held=consumes(slots))
    def free(self, held: object) -> None:
        if isinstance(held, tuple):
            slot, mark = held
            assert bool((slot.kv == mark).all())
            self.arena.free(slot)
            self.num_live -= 1

    @invariant()
    def sound(self) -> None:
        self.arena.check_invariants()
        assert self.arena.num_live == self.num_live


ArenaMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestArenaMachine = ArenaMachine.TestCase
