import os
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from daemons.engine.arena.kv_arena import KvArena
from daemons.engine.canary import run_canary
from daemons.engine.models import read_geometry
from daemons.engine.runner import DecodeRow, Runner

TEXT = Path("/usr/share/common-licenses/GPL-3")


@pytest.fixture(scope="module")
def model_dir() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    default = cache / "mooncake/models/SmolLM2-135M-Instruct"
    path = Path(os.environ.get("MC_MODEL_DIR") or default)
    if not (path / "model.safetensors").is_file():
        pytest.skip(f"no real model at {path}: run `mcctl model fetch` or set MC_MODEL_DIR")
    return path


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def runner(request: pytest.FixtureRequest, model_dir: Path) -> Runner:
    return Runner(model_dir, KvArena(read_geometry(model_dir, request.param), 4096))


def answer(runner: Runner, tokens: list[int], steps: int) -> list[int]:
    slot = runner.arena.allocate(len(tokens) + steps)
    words = [int(runner.prefill(slot, tokens).argmax())]
    for position in range(len(tokens), len(tokens) + steps - 1):
        words.append(int(runner.decode([DecodeRow(slot, words[-1], position)])[0].argmax()))
    runner.arena.free(slot)
    return words


def test_it_knows_the_capital_of_france(runner: Runner, model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    chat = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    words = answer(runner, tokenizer.encode(chat).ids, 8)
    assert tokenizer.decode(words).startswith("The capital of France is Paris.")


def test_canary_allows_reuse_and_publishing_answers(runner: Runner) -> None:
    result = run_canary(runner)
    assert (result.reuse_equal, result.decode_equal, result.reason) == (True, True, None)


@pytest.mark.skipif(not TEXT.exists(), reason=f"needs {TEXT} as a long prompt")
def test_long_reuse_and_decode_change_no_bit(runner: Runner, model_dir: Path) -> None:
    tokens = Tokenizer.from_file(str(model_dir / "tokenizer.json")).encode(TEXT.read_text()).ids
    tokens = tokens[:700]
    whole, part = runner.arena.allocate(700), runner.arena.allocate(700)
    logits = runner.prefill(whole, tokens)
    part.kv[:, :, :576] = whole.kv[:, :, :576]
    assert torch.equal(runner.prefill(part, tokens, 576), logits)
    assert torch.equal(part.kv[:, :, :700], whole.kv[:, :, :700])
    part.kv[:, :, 620:] = 1
    for position in range(620, 640):
        runner.decode([DecodeRow(part, tokens[position], position)])
    assert torch.equal(part.kv[:, :, 620:640], whole.kv[:, :, 620:640])
    runner.arena.free(whole)
    runner.arena.free(part)
