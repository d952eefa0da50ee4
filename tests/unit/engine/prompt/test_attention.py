from collections.abc import Iterator

import pytest
import torch

from daemons.engine.arena.kv_arena import KvArena
from daemons.engine.decode.attention import DecodeAttention, Span
from daemons.engine.geometry import KvGeometry
from daemons.engine.models.config import DecoderConfig, RopeConfig
from daemons.engine.prompt.attention import FINE_KEYS, Attention, Masks

ROPE = RopeConfig(10000.0)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("head_dim", "group"), [(64, 1), (64, 3), (80, 2), (96, 4), (128, 4), (128, 8), (256, 1)]
)
def test_rows_of_any_company_agree(head_dim: int, group: int, dtype: str) -> None:
    torch.manual_seed(0)
    arena = KvArena(KvGeometry(1, 2, head_dim, dtype), 1024)  # type: ignore[arg-type]
    config = DecoderConfig(
        1, 2 * group * head_dim, 2 * group, 2, head_dim, 9, 1024, 1e-5, ROPE, False, False, ()
    )
    attention, slot = Attention(config, arena, 1024), arena.allocate(1024)
    slot.kv.normal_()
    end, group_heads = 768, 2 * group
    # Large queries make near-ties of scores, whose rounding shows in the output.
    q = (5 * torch.randn(256, group_heads, head_dim)).to(slot.kv.dtype)
    whole = attention.chunk(q, slot, 0, end)
    for first, rows in ((0, 4), (64, 8), (192, 64), (252, 4), (128, 128), (100, 24), (5, 68)):
        part = attention.chunk(q[first : first + rows], slot, 0, end - first)
        assert torch.equal(part, whole[first : first + rows])
    decoding = DecodeAttention(config, arena, attention)
    for row in (0, 1, 63, 64, 200, 255):
        position = end - 1 - row
        kept = slot.kv[0, :, position].clone()
        step = decoding.step([Span(slot, position)])
        out = step.attend(0, q[row : row + 1], kept[:1], kept[1:])
        assert torch.equal(out[0], whole[row])


@pytest.mark.parametrize("end", [257, 300, 320, 321, 448, 767])
def test_keys_end_soon_behind_the_last_rows_and_change_no_bit(end: int) -> None:
    torch.manual_seed(0)
    arena = KvArena(KvGeometry(1, 2, 64, "bfloat16"), 768)
    config = DecoderConfig(1, 256, 4, 2, 64, 9, 768, 1e-5, ROPE, False, False, ())
    attention, slot = Attention(config, arena, 768), arena.allocate(768)
    slot.kv.normal_()
    q = (5 * torch.randn(256, 4, 64)).to(slot.kv.dtype)
    short = attention.chunk(q[:64], slot, 0, end)
    if attention._fine_rows:
        assert slot._viewed_tokens - end < FINE_KEYS
    attention._fine_rows = ()
    assert torch.equal(attention.chunk(q[:64], slot, 0, end), short)
    assert slot._viewed_tokens % 256 == 0


def test_attention_equals_the_definition() -> None:
    torch.manual_seed(0)
    arena = KvArena(KvGeometry(1, 2, 16, "float32"), 512)
    config = DecoderConfig(1, 96, 6, 2, 16, 9, 512, 1e-5, ROPE, False, False, ())
    attention, slot = Attention(config, arena, 512), arena.allocate(512)
    slot.kv.normal_()
    q = torch.randn(8, 6, 16)
    out = attention.chunk(q, slot, 0, 268).view(8, 6, 16)
    for row in range(8):
        keys, values = slot.keys[0][: 268 - row], slot.values[0][: 268 - row]
        for head in range(6):
            weights = (keys[:, head // 3] @ q[row, head] / 4).softmax(dim=0)
            torch.testing.assert_close(out[row, head], weights @ values[:, head // 3])


def test_masks_open_what_came_before() -> None:
    masks = Masks(2048, torch.zeros(1))
    for position, num_keys in ((0, 256), (255, 256), (256, 512), (2047, 2048)):
        rows = masks.rows(position + 1, 256, num_keys)
        for row in (0, 1, 255):
            assert (rows[row] == 0).tolist() == [key <= position - row for key in range(num_keys)]
