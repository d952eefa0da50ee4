from collections.abc import Iterator

import pytest
import torch

from daemons.engine.arena.kv_arena import KvArena, KvSlot
from daemons.engine.decode.attention import DecodeAttention, Span
from daemons.engine.decode.forms import POSITIONS
from daemons.engine.geometry import KvDtype, KvGeometry
from daemons.engine.models.config import DecoderConfig, RopeConfig
from daemons.engine.prompt.attention import Attention

CONFIG = DecoderConfig(
    1, 96, 6, 2, 16, 9, 1024, 1e-5, RopeConfig(10000.0), False, False, ()
)  # 6 query heads on 2 key heads of 16


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


@pytest.fixture
def slot() -> KvSlot:
    torch.manual_seed(0)
    slot = KvArena(KvGeometry(1, 2, 16, "float32"), 1024).allocate(1024)
    slot.kv.normal_()
    return slot


def test_rows_cross_key_grids_as_in_their_chunk(slot: KvSlot) -> None:
    arena = KvArena(slot.geometry, 1024)
    slot = arena.allocate(1024)
    slot.kv.normal_()
    attention = Attention(CONFIG, arena, 1024)
    decoding = DecodeAttention(CONFIG, arena, attention)
    q = 5 * torch.randn(256, 6, 16)
    for start in (0, 256, 768):
        whole = attention.chunk(q.flip(0), slot, 0, start + 256).flip(0)
        for row in (0, 62, 63, 64, 127, 128, 192, 255):
            k, v = slot.kv[0, :, start + row].clone().split(1)
            step = decoding.step([Span(slot, start + row)] * 2)
            out = step.attend(
                0, q[row : row + 1].expand(4, -1, -1), k.expand(2, -1, -1), v.expand(2, -1, -1)
            )
            assert torch.equal(out[0], whole[row])
            assert out.shape == (4, 96)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_that_share_a_call_equal_rows_alone(dtype: KvDtype) -> None:
    torch.manual_seed(0)
    arena = KvArena(KvGeometry(1, 2, 16, dtype), 4096)
    taken = [arena.allocate(tokens) for tokens in (512, 512, 512, 256, 512, 512)]
    for slot in taken:
        slot.kv.normal_()
    decoding = DecodeAttention(CONFIG, arena, Attention(CONFIG, arena, 512))
    # Two spaced alike, one that reads more keys; then one of another size; then two, the later one first.
    rows = [(0, 65), (1, 70), (2, 300), (3, 100), (5, 100), (4, 101)]
    spans = [Span(taken[slot], position) for slot, position in rows]
    assert [run.length for run in decoding.runs(spans)] == [2, 1, 1, 1, 1]
    assert [run.length for run in decoding.runs([*spans[:4], spans[5], spans[4]])] == [2, 1, 1, 2]
    q, k, v = (torch.randn(6, heads, 16).to(arena.rows) for heads in (6, 2, 2))
    together = decoding.step(spans).attend(0, q, k, v)
    for row, span in enumerate(spans):
        one = slice(row, row + 1)
        assert torch.equal(
            decoding.step([span]).attend(0, q[one], k[one], v[one])[0], together[row]
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_positions_that_share_a_call_equal_positions_alone(dtype: KvDtype) -> None:
    torch.manual_seed(0)
    arena = KvArena(KvGeometry(1, 2, 16, dtype), 8192)
    taken = [arena.allocate(1024) for _ in range(8)]
    for slot in taken:
        slot.kv.normal_()
    decoding = DecodeAttention(CONFIG, arena, Attention(CONFIG, arena, 1024))
    assert sorted(decoding.forms) == list(POSITIONS)
    # At the start, across an edge of the key grid, up to the end of a chunk, and behind a block of the kernel.
    starts = {1: (255,), 2: (0, 63), 4: (62, 252), 8: (57, 700), 16: (240,)}
    placed = [(number, at) for number in POSITIONS for at in starts[number]]
    spans = [Span(taken[i], at, number) for i, (number, at) in enumerate(placed)]
    rows = sum(span.num_positions for span in spans)
    q, k, v = (torch.randn(rows, heads, 16).to(arena.rows) for heads in (6, 2, 2))
    together = decoding.step(spans).attend(0, q, k, v)
    row = 0
    for span in spans:
        for position in range(span.position, span.last + 1):
            one = slice(row, row + 1)
            alone = decoding.step([Span(span.slot, position)]).attend(0, q[one], k[one], v[one])[0]
            assert torch.equal(together[row], alone), (span.num_positions, position)
            row += 1
