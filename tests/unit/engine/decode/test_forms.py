"""Each kernel call that decode may take is attention, and only those that give a chunk's bits are taken."""

from collections.abc import Iterator

import pytest
import torch

from daemons.engine.arena.kv_arena import KvArena, KvSlot
from daemons.engine.decode.attention import Run, run_views
from daemons.engine.decode.forms import (
    KEY_GRIDS,
    MAX_FUSED_ROWS,
    POSITIONS,
    DecodeForm,
    RowProbe,
    choose_forms,
)
from daemons.engine.geometry import CHUNK_TOKENS, KvGeometry
from daemons.engine.models.config import DecoderConfig, RopeConfig
from daemons.engine.prompt.attention import Attention, Masks, probes

CONFIG = DecoderConfig(
    1, 96, 6, 2, 16, 9, 1024, 1e-5, RopeConfig(10000.0), False, False, ()
)  # 6 query heads on 2 key heads of 16
FUSED = DecodeForm(2, 3, 16, 8, 64, is_fused=True)
BY_HEAD = DecodeForm(2, 3, 16, 4, 64, is_fused=False)


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


@pytest.mark.parametrize("form", [FUSED, BY_HEAD])
@pytest.mark.parametrize("position", [0, 63, 64, 700])
def test_a_form_attends_as_defined(form: DecodeForm, position: int, slot: KvSlot) -> None:
    q = torch.randn(1, 6, 16)
    calls = form.new_queries(1, slot.kv)
    form.by_head(calls).copy_(q.view(1, 2, 3, 16))
    num_keys = form.num_keys(position)
    assert position < num_keys <= position + 64
    mask = torch.zeros(form.num_rows, num_keys)
    mask[:, position + 1 :] = float("-inf")
    ((keys, values),) = run_views(form, slot.kv.view(-1, 2, 16), Run(slot, 1, 0, num_keys))
    out = form.by_head(form.attend(calls, keys, values, mask)).reshape(6, 16)
    for head in range(6):
        weights = (slot.keys[0][: position + 1, head // 3] @ q[0, head] / 4).softmax(dim=0)
        torch.testing.assert_close(out[head], weights @ slot.values[0][: position + 1, head // 3])


@pytest.mark.parametrize("grid", KEY_GRIDS)
@pytest.mark.parametrize("position", [0, 63, 64, 255, 256, 1000])
def test_keys_end_at_the_grid_and_within_the_chunk(grid: int, position: int) -> None:
    num_keys = DecodeForm(2, 3, 16, 8, grid, is_fused=True).num_keys(position)
    assert num_keys % grid == 0
    assert position < num_keys <= (position // CHUNK_TOKENS + 1) * CHUNK_TOKENS


@pytest.mark.parametrize("num_positions", POSITIONS[:3])
@pytest.mark.parametrize("is_fused", [True, False])
def test_queries_stand_where_their_key_heads_do_and_see_no_later_key(
    is_fused: bool, num_positions: int, slot: KvSlot
) -> None:
    rows = 6 * num_positions if is_fused else 3 * num_positions
    form = DecodeForm(2, 3, 16, rows + 2, 64, is_fused, num_positions=num_positions)
    calls = form.new_queries(1, slot.kv)
    form.by_head(calls).copy_(torch.ones(1, num_positions, 2, 3, 16))
    assert calls.sum() == num_positions * 6 * 16, "each query once, zeros beside it"
    assert calls[:, :, rows:].sum() == 0
    mask = form.mask(Masks(1024, slot.kv), 61, 128)
    is_open = (mask[0, 0] == 0).sum(dim=1).tolist()
    a_position = form.rows_a_position
    assert is_open[:rows] == [62 + row // a_position for row in range(rows)]


def test_chosen_forms_give_a_chunks_bits_with_few_rows(slot: KvSlot) -> None:
    forms = choose_forms(CONFIG, Attention(CONFIG, KvArena(slot.geometry, 256), 256), slot.kv)
    assert 1 in forms
    for number, form in forms.items():
        assert form.num_positions == number
        assert not form.is_fused or form.num_rows <= MAX_FUSED_ROWS
        for probe in probes(16, 320, slot.kv, 2, 3):
            assert RowProbe(probe).passes(form)


def test_where_no_cheaper_form_agrees_rows_run_as_in_a_chunk(
    slot: KvSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = Attention(CONFIG, KvArena(slot.geometry, 256), 256)
    monkeypatch.setattr(RowProbe, "passes", lambda *_: False)
    forms = choose_forms(CONFIG, attention, slot.kv)
    assert list(forms) == [1]
    form = forms[1]
    assert (form.is_fused, form.key_grid) == (False, 256)
    assert form.num_rows == attention.rows_to_run(3)


def test_a_probe_sees_another_order_of_keys(slot: KvSlot) -> None:
    _, spread = probes(16, 320, slot.kv, 2, 3)
    probe = RowProbe(spread)
    probe._k, probe._v = probe._k.clone(), probe._v.clone()
    order = torch.cat((torch.arange(320).flip(0), torch.arange(320, 512)))
    probe._k, probe._v = probe._k[order], probe._v[order]
    assert not probe.passes(DecodeForm(2, 3, 16, 4, 256, is_fused=False))
