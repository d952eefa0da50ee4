"""The host twin of an accelerator's arena; any second memory stands for the accelerator's."""

import torch

from daemons.engine.arena.kv_arena import KvArena
from daemons.engine.arena.staging import Staging
from daemons.engine.geometry import KvGeometry

GEOMETRY = KvGeometry(num_layers=3, num_kv_heads=2, head_dim=8, dtype="float32")


def test_what_goes_down_comes_up_in_another_slot_range() -> None:
    host = bytearray(KvArena.arena_bytes(GEOMETRY, 1024))
    arena = KvArena(GEOMETRY, 1024)
    staging = Staging(arena, memoryview(host), is_same=False)
    arena.allocate(256)
    slot = arena.allocate(256)
    slot.kv.copy_(torch.randn(slot.kv.shape))
    kept = slot.kv.clone()
    staging.download(slot, 10, 50, layer=1)
    staging.download(slot, 50, 60)
    slot.kv.zero_()
    staging.upload(slot, 10, 60)
    assert torch.equal(slot.kv[1, :, 10:60], kept[1, :, 10:60])
    assert torch.equal(slot.kv[:, :, 50:60], kept[:, :, 50:60])
    assert not slot.kv[0, :, 10:50].any()
    assert not slot.kv[:, :, :10].any()
    assert not slot.kv[:, :, 60:].any()


def test_twin_is_laid_out_as_peers_are_told() -> None:
    host = bytearray(KvArena.arena_bytes(GEOMETRY, 1024))
    arena = KvArena(GEOMETRY, 1024)
    staging = Staging(arena, memoryview(host), is_same=False)
    arena.allocate(256)
    slot = arena.allocate(512)
    slot.kv.copy_(torch.randn(slot.kv.shape))
    staging.download(slot, 0, 512)
    offset = slot.half_offset(2, 1, 300)
    row = torch.frombuffer(host, dtype=torch.float32, offset=offset, count=16)
    assert torch.equal(row, slot.kv[2, 1, 300].flatten())


def test_on_a_cpu_nothing_is_copied() -> None:
    arena = KvArena(GEOMETRY, 256)
    staging = Staging(arena, memoryview(bytearray(1)), is_same=True)
    slot = arena.allocate(256)
    staging.download(slot, 0, 256)
    staging.upload(slot, 0, 256)
