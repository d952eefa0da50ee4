"""Reuse, disaggregation, batching and placement never change a token: real daemons, tiny real models."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kit.models import FAMILIES, VOCAB_SIZE, Family, make_tiny_model
from kit.tokens import Answer, TokenClient, greedy, random_prompt

from daemons.core.errors import Rejected
from daemons.core.ids import NodeId
from daemons.protocol.block import BlockFilter
from daemons.protocol.cache import ClearBlocks
from daemons.protocol.request import SamplingParams
from mcctl.cluster.plan import ClusterOptions, Tables
from mcctl.cluster.processes import LocalCluster
from mcctl.cluster.record import Role

NUM_TOKENS = 12
PREFILLS = {NodeId("prefill"), NodeId("prefill-2")}
ALWAYS_REUSE: dict[Role, Tables] = {"master": {"conductor": {"policy": "cache-aware"}}}
"""A model this small is computed about as fast as it is loaded, so the `time` policy may choose either."""
EDGES = [1, 2, 63, 64, 65, 127, 128, 129, 192, 255, 256, 257, 319, 320, 321, 448, 511, 512, 513]
OFF_EDGE = [5, 100, 300, 333, 400, 607]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    model = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")
    options = ClusterOptions(
        model=model,
        num_prefill=2,
        num_decode=2,
        num_cachenodes=2,
        dtype=request.param,
        kv_memory="32MiB",
        segment="64MiB",
        overrides=ALWAYS_REUSE,
    )
    with LocalCluster.temporary(options) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[TokenClient]:
    with TokenClient(cluster.master) as connected:
        yield connected


@pytest.mark.parametrize("length", EDGES + OFF_EDGE)
def test_answer_is_the_same_cold_published_and_reused(client: TokenClient, length: int) -> None:
    """Reused on the instance that made it, from its own arena, and on another, from the pool."""
    prompt = random_prompt(length, length, VOCAB_SIZE)
    alone = client.generate(prompt, NUM_TOKENS, cache="bypass", drafts=False)
    first = client.generate(prompt, NUM_TOKENS)
    client.wait_sealed(prompt)
    client.wait_on_device(prompt)
    maker = first.plan.prefill.node
    elsewhere = client.generate(prompt, NUM_TOKENS, exclude=[maker])
    again = client.generate(prompt, NUM_TOKENS, exclude=PREFILLS - {maker})
    assert alone.num_reused == 0
    assert first.num_reused == 0
    assert elsewhere.num_reused == again.num_reused == (length - 1) // 64 * 64
    assert elsewhere.num_on_device == 0
    assert again.num_on_device >= again.num_reused
    assert first.tokens == alone.tokens
    assert elsewhere.tokens == alone.tokens
    assert again.tokens == alone.tokens


@pytest.mark.parametrize("prefix", [64, 192, 256, 320, 448, 512])
@pytest.mark.parametrize("suffix", [1, 3, 33, 64, 100])
def test_any_suffix_on_a_reused_prefix_answers_as_if_computed(
    client: TokenClient, prefix: int, suffix: int
) -> None:
    shared = random_prompt(1000 * suffix + prefix, prefix, VOCAB_SIZE)
    first = client.generate(shared, 1)
    client.wait_sealed(shared)
    client.wait_on_device(shared)
    prompt = shared + random_prompt(2000 + suffix, suffix, VOCAB_SIZE)
    # By turns from the pool and from the arena of the instance that made it.
    maker, is_held = first.plan.prefill.node, prefix in (64, 256, 448)
    exclude = PREFILLS - {maker} if is_held else {maker}
    reused = client.generate(prompt, NUM_TOKENS, exclude=exclude)
    assert reused.num_reused == prefix
    assert reused.num_on_device == (prefix if is_held else 0)
    assert reused.tokens == client.generate(prompt, NUM_TOKENS, cache="bypass").tokens


def test_next_turn_reuses_the_answer_and_says_the_same(client: TokenClient) -> None:
    if not client.model().is_decode_canonical:
        pytest.skip("the canary found decode KV not canonical on this machine")
    prompt = random_prompt(77, 200, VOCAB_SIZE)
    first = client.generate(prompt, 100)
    client.wait_sealed((prompt + first.tokens)[:-1])
    turn = prompt + first.tokens + random_prompt(78, 20, VOCAB_SIZE)
    again = client.generate(turn, NUM_TOKENS)
    assert again.num_reused > 200
    plain = client.generate(turn, NUM_TOKENS, cache="bypass", drafts=False)
    assert again.tokens == plain.tokens


def test_what_the_pool_lost_is_put_there_again_by_the_instance_that_has_it(
    client: TokenClient,
) -> None:
    prompt = random_prompt(73, 320, VOCAB_SIZE)
    maker = client.generate(prompt, 1).plan.prefill.node
    client.wait_sealed(prompt)
    client.wait_on_device(prompt)
    for node in (NodeId("cachenode"), NodeId("cachenode-2")):
        client.master.request(ClearBlocks(filter=BlockFilter(node=node)), timeout_s=30)
    longer = prompt + random_prompt(74, 70, VOCAB_SIZE)
    again = client.generate(longer, NUM_TOKENS, exclude=PREFILLS - {maker})
    assert (len(again.plan.matched), again.num_reused) == (0, 320)
    client.wait_sealed(longer)
    assert again.tokens == client.generate(longer, NUM_TOKENS, exclude={maker}).tokens


def test_a_plan_of_another_prompt_is_refused(client: TokenClient) -> None:
    prompt, other = random_prompt(71, 300, VOCAB_SIZE), random_prompt(72, 300, VOCAB_SIZE)
    client.generate(prompt, NUM_TOKENS)
    client.wait_sealed(prompt)
    plan = client.plan(prompt, NUM_TOKENS)
    assert plan.matched
    with pytest.raises(Rejected, match="not those of the prompt"):
        client.run(plan, other, greedy(NUM_TOKENS))


def test_mixed_batch_gives_each_request_its_own_answer(cluster: LocalCluster) -> None:
    stream = random.Random(5)
    prompts = [random_prompt(3000 + i, stream.randrange(1, 600), VOCAB_SIZE) for i in range(12)]

    def ask(prompt: list[int], *, drafts: bool = True) -> Answer:
        sampling = SamplingParams(
            max_tokens=24, temperature=len(prompt) % 2 * 0.3, seed=len(prompt), ignore_eos=True
        )
        with TokenClient(cluster.master) as own:
            return own.generate(prompt, 24, sampling=sampling, drafts=drafts)

    alone = [ask(prompt, drafts=False) for prompt in prompts]
    assert {answer.reply.timing.decode_steps for answer in alone} == {23}
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(ask, prompts * 2))
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone * 2]


def test_a_text_that_repeats_itself_takes_fewer_steps_and_says_the_same(
    client: TokenClient,
) -> None:
    # Random weights soon say one thing over and over; so does the prompt, across edges of blocks and of a chunk.
    prompt = random_prompt(91, 40, VOCAB_SIZE) * 6
    plain = client.generate(prompt, 60, drafts=False)
    drafted = client.generate(prompt, 60)
    assert drafted.tokens == plain.tokens
    assert plain.reply.timing.decode_steps == 59
    assert drafted.reply.timing.decode_steps < 59
    assert plain.reply.timing.drafted_tokens == 0
    # The last step may be right beyond the last token that was asked for.
    assert drafted.reply.timing.accepted_tokens >= 59 - drafted.reply.timing.decode_steps


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_answers_are_those_of_transformers(tmp_path: Path, family: Family) -> None:
    model = make_tiny_model(tmp_path / "tiny", family, seed=3)
    prompts = [
        random_prompt(4000 + length, length, VOCAB_SIZE) for length in (1, 64, 100, 257, 320)
    ]
    options = ClusterOptions(model=model, dtype="float32", kv_memory="32MiB", segment="32MiB")
    with LocalCluster.temporary(options) as running, TokenClient(running.master) as own:
        cold = [own.generate(prompt, NUM_TOKENS).tokens for prompt in prompts]
        for prompt in prompts:
            own.wait_sealed(prompt)
        reused = [own.generate(prompt, NUM_TOKENS).tokens for prompt in prompts]
    expected = [_oracle(model, prompt) for prompt in prompts]
    assert cold == expected
    assert reused == expected


def _oracle(model_dir: Path, prompt: list[int]) -> list[int]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
        do_sample=False,
    )
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]
