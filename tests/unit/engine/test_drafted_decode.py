"""Decode with drafts says and stores, bit for bit, what decode without them does."""

import random
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

import pytest
import torch

from daemons.engine.arena.staging import Staging
from daemons.engine.base import NoHooks
from daemons.engine.canary import run_canary
from daemons.engine.decode.sequence import Sequence
from daemons.engine.drafts.plan import Drafting, room_for_drafts
from daemons.engine.runner import Runner
from daemons.engine.torch_engine import TorchEngine
from daemons.protocol.request import SamplingParams

PROMPTS = (1, 61, 190, 250, 318, 509)
NUM_TOKENS = 18
FAMILIES = ["llama-tied", "qwen2", "qwen3"]


class Foretold(Drafting):
    """Drafts of the answer that is known, of any length, often wrong somewhere."""

    def __init__(self, answers: dict[str, list[int]], lengths: Many[int]) -> None:
        super().__init__(15)
        self.answers = answers
        self.lengths = (0, *lengths)
        self.random = random.Random(0)

    def plan(self, step: Many[Sequence], lengths: Many[int]) -> list[tuple[int, ...]]:
        drafts, rows = [], len(step)
        for one in step:
            fitting = [length for length in self.lengths if length <= room_for_drafts(one)]
            length = self.random.choice([each for each in fitting if rows + each <= 32] or [0])
            rows += length
            draft = self.answers[one.request_id][one.num_generated :][:length]
            draft += [3] * (length - len(draft))
            if length and self.random.random() < 0.5:
                draft[self.random.randrange(length)] ^= 1
            drafts.append(tuple(draft))
        return drafts


def decoded(runner: Runner, drafting: Drafting, *, alone: bool) -> tuple[dict[str, Any], int]:
    """By request, its tokens and the KV of them; and how many steps it took."""
    engine = TorchEngine(runner, Staging(runner.arena, memoryview(b""), is_same=True), drafting)
    running, done, steps = [], dict[str, Any](), 0
    for number, length in enumerate(PROMPTS):
        prompt = [3 + at * 7919 % 190 for at in range(length)]
        sampling = SamplingParams(max_tokens=99, temperature=number % 3 * 0.4, seed=number)
        slot = runner.arena.allocate(length + NUM_TOKENS)
        one = Sequence(str(length), slot, prompt, sampling, length + NUM_TOKENS)
        one.append(engine.prefill(slot, prompt, 0, NoHooks(), sampling))
        running.append(one)
    while running:
        step = running[:1] if alone else running
        made = engine.decode(step)
        steps += 1
        for one, each in zip(list(step), made, strict=True):
            for token in each.tokens:
                one.append(token)
            if one.finish:
                kv = one.slot.kv[:, :, : one.position].clone()  # type: ignore[attr-defined]
                done[one.request_id] = one.tokens[one.num_prompt_tokens :], kv
                runner.arena.free(one.slot)
                running.remove(one)
    return done, steps


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_change_no_token_and_no_bit_of_kv(
    make_tiny: Any, make_runner: Callable[..., Runner], family: str, dtype: str
) -> None:
    runner = make_runner(make_tiny(family).path, dtype)
    assert run_canary(runner).draft_reason is None
    assert runner.draft_lengths == (1, 3, 7, 15)
    plain, most = decoded(runner, Drafting(0), alone=True)
    answers = {name: tokens for name, (tokens, _) in plain.items()}
    for drafting in (Drafting(15), Foretold(answers, runner.draft_lengths)):
        drafted, steps = decoded(runner, drafting, alone=False)
        assert {name: tokens for name, (tokens, _) in drafted.items()} == answers
        assert all(torch.equal(drafted[name][1], kv) for name, (_, kv) in plain.items())
    assert steps < NUM_TOKENS < most
