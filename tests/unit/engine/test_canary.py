from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from daemons.engine.arena.kv_arena import KvArena
from daemons.engine.canary import run_canary
from daemons.engine.models import read_geometry
from daemons.engine.runner import DecodeRow, Runner


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_canary_is_content_and_leaves_nothing(tiny: Any, dtype: Any) -> None:
    arena = KvArena(read_geometry(tiny.path, dtype), 4096)
    runner = Runner(tiny.path, arena)
    assert not runner.is_decode_canonical
    result = run_canary(runner)
    assert (result.reuse_equal, result.decode_equal, result.reason) == (True, True, None)
    assert runner.is_decode_canonical
    assert (result.draft_reason, runner.draft_lengths) == (None, (1, 3, 7, 15))
    assert runner.kv_signature in runner.numerics_id()
    assert arena.num_live == 0
    arena.check_invariants()


def test_signature_tells_apart_what_rounds_differently(make_tiny: Any) -> None:
    path = make_tiny("qwen3").path
    ids = []
    for spoil in (False, False, True):
        runner = Runner(path, KvArena(read_geometry(path, "bfloat16"), 4096))
        if spoil:
            with torch.inference_mode():
                runner.model.layers[0].mlp_norm.weight.mul_(1 + 2**-7)
        run_canary(runner)
        ids.append(runner.numerics_id())
    assert ids[0] == ids[1] != ids[2]


def spoiled(path: Path, spoil: Callable[[Runner], None]) -> Runner:
    runner = Runner(path, KvArena(read_geometry(path, "float32"), 4096))
    spoil(runner)
    return runner


def test_canary_sees_prefill_that_depends_on_where_it_starts(make_tiny: Any) -> None:
    def spoil(runner: Runner) -> None:
        forward = runner.model.forward

        def wrong(tokens: torch.Tensor, positions: torch.Tensor, *rest: Any) -> torch.Tensor:
            return forward(tokens, positions + (len(tokens) < 200), *rest)

        runner.model.forward = wrong  # type: ignore[method-assign]

    result = run_canary(spoiled(make_tiny("qwen2").path, spoil))
    assert not result.reuse_equal
    assert "reused" in (result.reason or "")


def test_canary_sees_prompts_whose_length_shows_in_their_kv(make_tiny: Any) -> None:
    def spoil(runner: Runner) -> None:
        forward = runner.model.forward

        def wrong(tokens: torch.Tensor, positions: torch.Tensor, *rest: Any) -> torch.Tensor:
            return forward(tokens + (positions.max() == 319), positions, *rest)

        runner.model.forward = wrong  # type: ignore[method-assign]

    result = run_canary(spoiled(make_tiny("qwen2").path, spoil))
    assert not result.reuse_equal
    assert "first 320 of 397" in (result.reason or "")


def test_canary_sees_decode_that_depends_on_its_batch(make_tiny: Any) -> None:
    def spoil(runner: Runner) -> None:
        decode = runner.decode

        def wrong(rows: list[DecodeRow]) -> torch.Tensor:
            return decode(rows) + (len(rows) > 1) * 1e-6

        runner.decode = wrong  # type: ignore[method-assign,assignment]

    runner = spoiled(make_tiny("qwen2").path, spoil)
    result = run_canary(runner)
    assert (result.reuse_equal, result.decode_equal) == (True, False)
    assert "batch" in (result.reason or "")
    assert not runner.is_decode_canonical


def test_canary_sees_drafts_that_change_a_bit(make_tiny: Any) -> None:
    def spoil(runner: Runner) -> None:
        decode = runner.decode

        def wrong(rows: list[DecodeRow]) -> torch.Tensor:
            return decode(rows) + any(len(row.drafts) == 7 for row in rows) * 1e-6

        runner.decode = wrong  # type: ignore[method-assign,assignment]

    runner = spoiled(make_tiny("qwen2").path, spoil)
    result = run_canary(runner)
    assert (result.reuse_equal, result.decode_equal, runner.draft_lengths) == (True, True, ())
    assert "7 drafts" in (result.draft_reason or "")


def test_canary_without_room_allows_nothing(make_tiny: Any) -> None:
    path = make_tiny("qwen2").path
    runner = Runner(path, KvArena(read_geometry(path, "float32"), 512))
    result = run_canary(runner)
    assert (result.reuse_equal, result.decode_equal) == (False, False)
    assert "no room" in (result.reason or "")
