import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from daemons.core.errors import ConfigError, Rejected
from daemons.engine.arena.kv_arena import KvArena, KvSlot
from daemons.engine.base import Cancelled
from daemons.engine.geometry import KvGeometry
from daemons.engine.models import read_geometry
from daemons.engine.runner import DecodeRow, Runner

MakeRunner = Callable[..., Runner]
EDGES = [1, 2, 3, 5, 63, 64, 65, 129, 255, 256, 257, 300, 319, 320, 321, 511, 512, 513]
DTYPES = ["float32", "bfloat16"]


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 200, (length,), generator=generator).tolist()


@contextmanager
def slots(runner: Runner, *sizes: int) -> Any:
    taken = [runner.arena.allocate(size) for size in sizes]
    try:
        yield taken
    finally:
        for slot in taken:
            runner.arena.free(slot)


def greedy(runner: Runner, slot: KvSlot, tokens: list[int], steps: int) -> list[int]:
    logits = runner.prefill(slot, tokens)
    answer = [int(logits.argmax())]
    for position in range(len(tokens), len(tokens) + steps - 1):
        row = DecodeRow(slot, answer[-1], position)
        answer.append(int(runner.decode([row])[0].argmax()))
    return answer


@pytest.mark.parametrize("length", EDGES)
def test_greedy_tokens_and_logits_equal_transformers(
    tiny: Any, make_runner: MakeRunner, length: int
) -> None:
    runner, tokens = make_runner(tiny.path), prompt(length)
    with slots(runner, length + 8) as (slot,):
        answer = greedy(runner, slot, tokens, 6)
        logits = runner.prefill(slot, tokens)
    with torch.no_grad():
        expected = tiny.oracle(torch.tensor([tokens + answer])).logits[0]
    # Each token is the argmax given those before it, so by induction all are the oracle's.
    assert answer == expected[length - 1 : -1].argmax(dim=-1).tolist()
    torch.testing.assert_close(logits, expected[length - 1], atol=1e-3, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [65, 257, 320, 321, 400, 512, 700])
def test_reuse_changes_no_bit(tiny: Any, make_runner: MakeRunner, length: int, dtype: str) -> None:
    runner, tokens = make_runner(tiny.path, dtype), prompt(length)
    with slots(runner, length, length) as (whole, part):
        logits = runner.prefill(whole, tokens)
        for start in {64, 128, 192, 256, 320, 384, 448, 512, length // 64 * 64, length - 1}:
            if start < length:
                part.kv[:, :, :start] = whole.kv[:, :, :start]
                part.kv[:, :, start:] = 3.0
                part.finite_tokens = 0
                assert torch.equal(runner.prefill(part, tokens, start), logits)
                assert torch.equal(part.kv[:, :, :length], whole.kv[:, :, :length])


@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_writes_what_prefill_writes(tiny: Any, make_runner: MakeRunner, dtype: str) -> None:
    runner, tokens = make_runner(tiny.path, dtype), prompt(270)
    with slots(runner, 270, 270) as (whole, part):
        runner.prefill(whole, tokens)
        runner.prefill(part, tokens[:250])
        for position in range(250, 270):
            logits = runner.decode([DecodeRow(part, tokens[position], position)])
            assert torch.equal(
                logits[0], runner.prefill(whole, tokens[: position + 1], position // 64 * 64)
            )
        assert torch.equal(part.kv[:, :, :270], whole.kv[:, :, :270])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 4, 5, 9])
def test_a_row_does_not_see_its_batch(
    tiny: Any, make_runner: MakeRunner, size: int, dtype: str
) -> None:
    runner = make_runner(tiny.path, dtype)
    lengths = [7, 64, 255, 256, 300, 11, 90, 500, 1][:size]
    with slots(runner, *[length + 1 for length in lengths]) as taken:
        rows = []
        for index, (slot, length) in enumerate(zip(taken, lengths, strict=True)):
            runner.prefill(slot, prompt(length, seed=index))
            rows.append(DecodeRow(slot, 5 + index, length))
        together = runner.decode(rows)
        kv = [slot.kv[:, :, length].clone() for slot, length in zip(taken, lengths, strict=True)]
        for index, row in enumerate(rows):
            assert torch.equal(runner.decode([row])[0], together[index])
            assert torch.equal(row.slot.kv[:, :, row.position], kv[index])


def test_large_batches_are_no_exception(make_tiny: Any) -> None:
    path = make_tiny("llama-untied-llama3").path
    arena = KvArena(read_geometry(path, "bfloat16"), 300 * 256, num_sequences=300)
    runner = Runner(path, arena)
    rows = []
    for index in range(300):
        slot = arena.allocate(40)
        slot.kv.normal_()
        rows.append(DecodeRow(slot, index % 200, index % 40))
    together = runner.decode(rows)
    for index in (0, 31, 32, 255, 256, 299):
        assert torch.equal(runner.decode([rows[index]])[0], together[index])


def test_nothing_left_in_a_slot_reaches_an_answer(make_tiny: Any, make_runner: MakeRunner) -> None:
    runner, tokens = make_runner(make_tiny("llama-tied").path), prompt(70)
    with slots(runner, 300) as (slot,):
        clean = greedy(runner, slot, tokens, 4)
    with slots(runner, 300) as (slot,):
        slot.kv.fill_(float("nan"))
        assert greedy(runner, slot, tokens, 4) == clean
    with slots(runner, 300, 300) as (source, slot):
        runner.prefill(source, tokens)
        slot.kv.fill_(float("nan"))
        slot.kv[:, :, :70] = source.kv[:, :, :70]  # as a decode node receives it
        assert int(runner.decode([DecodeRow(slot, clean[0], 70)])[0].argmax()) == clean[1]
        slot.kv.zero_()


class Recorder:
    def __init__(self, runner: Runner, prefix: KvSlot, slot: KvSlot, start: int) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._prefix, self._slot, self._start = prefix, slot, start
        self.cancel_at = -1

    def before_layer(self, layer: int) -> None:
        self._slot.kv[layer, :, : self._start] = self._prefix.kv[layer, :, : self._start]
        self.calls.append(("before", layer))

    def after_layer(self, layer: int, start: int, end: int) -> None:
        self.calls.append(("after", layer, start, end))

    def is_cancelled(self) -> bool:
        return len(self.calls) == self.cancel_at


def test_layers_load_and_leave_one_by_one(make_tiny: Any, make_runner: MakeRunner) -> None:
    runner, tokens = make_runner(make_tiny("qwen2").path), prompt(600)
    with slots(runner, 600, 600) as (whole, slot):
        logits = runner.prefill(whole, tokens)
        hooks = Recorder(runner, whole, slot, 192)
        assert torch.equal(runner.prefill(slot, tokens, 192, hooks), logits)
        assert torch.equal(slot.kv[:, :, :600], whole.kv[:, :, :600])
    first = [(("before", n), ("after", n, 192, 256)) for n in range(3)]
    later = [("after", n, a, b) for a, b in ((256, 512), (512, 600)) for n in range(3)]
    assert hooks.calls == [call for pair in first for call in pair] + later


def test_prompts_take_turns_step_by_step(make_tiny: Any, make_runner: MakeRunner) -> None:
    runner = make_runner(make_tiny("qwen3").path)
    prompts = [prompt(600, 1), prompt(300, 2)]
    with slots(runner, 600, 600) as taken:
        alone = [runner.prefill(slot, p) for slot, p in zip(taken, prompts, strict=True)]
        steps = [
            runner.start_prefill(slot, p, start)
            for slot, p, start in zip(taken, prompts, (64, 128), strict=True)
        ]
        assert [step.step() is None for step in steps] == [True, True]
        assert steps[0].position == 256
        assert torch.equal(steps[1].step(), alone[1])
        assert steps[0].step() is None
        assert torch.equal(steps[0].step(), alone[0])


def test_a_cancelled_prefill_stops_between_layers(make_tiny: Any, make_runner: MakeRunner) -> None:
    runner = make_runner(make_tiny("llama-tied").path)
    with slots(runner, 300, 300) as (whole, slot):
        hooks = Recorder(runner, whole, slot, 0)
        hooks.cancel_at = 2
        with pytest.raises(Cancelled):
            runner.prefill(slot, prompt(300), 0, hooks)
        end = 300 if runner.wide.num_tokens(300) else 256  # the tail shares a wide pass
        assert hooks.calls == [("before", 0), ("after", 0, 0, end)]


def test_prompt_that_does_not_fit_is_refused(make_tiny: Any, make_runner: MakeRunner) -> None:
    runner = make_runner(make_tiny("llama-tied").path)
    with slots(runner, 100) as (slot,):
        for tokens, start in (([], 0), (prompt(10), 10), (prompt(300), 0)):
            with pytest.raises(ValueError, match="cannot prefill"):
                runner.prefill(slot, tokens, start)


@pytest.mark.parametrize("token", [-1, 200])
def test_token_of_another_vocabulary_is_refused(
    make_tiny: Any, make_runner: MakeRunner, token: int
) -> None:
    runner = make_runner(make_tiny("llama-tied").path)
    with slots(runner, 100) as (slot,), pytest.raises(Rejected, match="outside the model's 200"):
        runner.prefill(slot, [5, token, 6])


def test_another_thread_computes_the_same(make_tiny: Any, make_runner: MakeRunner) -> None:
    runner, seen = make_runner(make_tiny("llama-tied").path), []
    with slots(runner, 300) as (slot,):
        here = runner.prefill(slot, prompt(300))
        thread = threading.Thread(target=lambda: seen.append(runner.prefill(slot, prompt(300))))
        thread.start()
        thread.join()
    assert torch.equal(seen[0], here)


def test_arena_of_another_model_is_refused(make_tiny: Any) -> None:
    arena = KvArena(KvGeometry(1, 1, 8, "float32"), 256)
    with pytest.raises(ConfigError, match="another model"):
        Runner(make_tiny("llama-tied").path, arena)


def test_numerics_id_names_what_decides_rounding(make_tiny: Any, make_runner: MakeRunner) -> None:
    path = make_tiny("llama-tied").path
    one, other = (make_runner(path, dtype).numerics_id() for dtype in DTYPES)
    assert torch.__version__ in one
    assert "threads=1" in one
    assert one != other
