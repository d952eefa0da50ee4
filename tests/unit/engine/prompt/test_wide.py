from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from daemons.engine.arena.kv_arena import KvArena
from daemons.engine.models import read_geometry
from daemons.engine.models.decoder import LAST_ROWS
from daemons.engine.prompt import wide
from daemons.engine.prompt.attention import Masks, probes
from daemons.engine.runner import DecodeRow, Runner

MakeRunner = Callable[..., Runner]


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, 200, (length,), generator=generator).tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [512, 768, 1000])
def test_a_wide_pass_writes_the_bits_of_chunk_by_chunk(
    make_tiny: Any, make_runner: MakeRunner, length: int, dtype: str
) -> None:
    runner, tokens = make_runner(make_tiny("qwen3").path, dtype), prompt(length)
    if not runner.wide.num_tokens(length):
        pytest.skip(f"in {dtype} one causal call rounds otherwise than chunks do on this CPU")
    assert runner.wide.num_tokens(length) == length // 256 * 256
    one, other = runner.arena.allocate(length), runner.arena.allocate(length)
    try:
        logits = runner.start_prefill(one, tokens).step()
        assert logits is not None
        other.kv[:, :, :64] = one.kv[:, :, :64]
        assert torch.equal(runner.prefill(other, tokens, 64), logits)
        assert torch.equal(other.kv[:, :, :length], one.kv[:, :, :length])
    finally:
        runner.arena.free(one)
        runner.arena.free(other)


@pytest.mark.parametrize("length", [200, 512, 1000])
def test_the_last_layer_ends_for_the_last_rows_only(
    make_tiny: Any, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    path = make_tiny("llama-tied").path
    runner = Runner(path, KvArena(read_geometry(path, "float32"), 1024))
    after_attention, num_layers = runner.model.after_attention, runner.config.num_layers
    ended = [0] * num_layers

    def counted(layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        ended[layer] += len(hidden)
        return after_attention(layer, hidden, attended)

    monkeypatch.setattr(runner.model, "after_attention", counted)
    slot, tokens = runner.arena.allocate(length), prompt(length)
    logits = runner.prefill(slot, tokens)
    assert all(num_rows >= length for num_rows in ended[:-1])
    num_wide = runner.wide.num_tokens(length)
    num_passes = bool(num_wide) + -(-(length - num_wide) // 256) * (not num_wide)
    assert ended[-1] == LAST_ROWS * num_passes
    monkeypatch.undo()
    again = runner.decode([DecodeRow(slot, tokens[-1], length - 1)])[0]
    torch.testing.assert_close(again, logits)


def test_a_pass_has_a_longest_prompt(make_tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "is_causal_equal", lambda *_: True)  # on a CPU where it is not, too
    path = make_tiny("qwen3").path
    taken = Runner(path, KvArena(read_geometry(path, "float32"), 1024)).wide.num_tokens
    assert [taken(length) for length in (1, 255, 256, 8191, 100_000)] == [0, 0, 256, 7936, 8192]


def test_where_one_call_rounds_otherwise_prompts_go_chunk_by_chunk(
    make_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = wide.attend
    monkeypatch.setattr(wide, "attend", lambda q, k, v: attend(q, k, v).nextafter(q.new_ones(1)))
    path = make_tiny("llama-tied").path
    runner = Runner(path, KvArena(read_geometry(path, "float32"), 1024))
    assert runner.wide.num_tokens(1000) == 0
    prefill = runner.start_prefill(runner.arena.allocate(600), prompt(600))
    assert prefill.step() is None
    assert prefill.position == 256


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probes_see_a_sum_in_another_order(
    make_tiny: Any, make_runner: MakeRunner, dtype: torch.dtype
) -> None:
    config = make_runner(make_tiny("llama-tied").path).config
    like = torch.empty(0, dtype=dtype)
    masks, seen = Masks(512, like), []
    for q, k, v in probes(config.head_dim, 512, like):
        order = torch.cat((torch.randperm(256), torch.arange(256, 512)))
        one, other = (
            functional.scaled_dot_product_attention(
                q, keys, values, attn_mask=masks.rows(512, 256, 512)
            )
            for keys, values in ((k, v), (k[:, :, order], v[:, :, order]))
        )
        assert one.abs().max() > 0  # rounding, made large: exact results would be zero
        seen.append(not torch.equal(one, other))
    # Equal weights sum up exactly in bfloat16: that is what the second one is for.
    assert seen[1]
    assert seen[0] or dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_the_probes_find_equal_is_equal_on_plain_data(
    make_tiny: Any, make_runner: MakeRunner, dtype: str
) -> None:
    runner = make_runner(make_tiny("llama-tied").path, dtype)
    if not runner.wide.num_tokens(1024):
        pytest.skip(f"in {dtype} one causal call rounds otherwise than chunks do on this CPU")
    for seed in range(8):
        tokens = torch.randint(3, 200, (1024,), generator=torch.Generator().manual_seed(seed))
        one, other = runner.arena.allocate(1024), runner.arena.allocate(1024)
        try:
            logits = runner.prefill(one, tokens.tolist())
            other.kv[:, :, :64] = one.kv[:, :, :64]
            assert torch.equal(runner.prefill(other, tokens.tolist(), 64), logits)
        finally:
            runner.arena.free(one)
            runner.arena.free(other)
