"""What the bench computes from streams, with a gateway that keeps perfect time."""

from dataclasses import dataclass, field

import pytest

from mcctl.bench.serve import ServeBench, ServePlan, about, estimate_s, joint_rate
from mcctl.openai_stream import Answer, Body, Mooncake


def _answer(times: list[float], tokens: int) -> Answer:
    return Answer(piece_times_s=times, completion_tokens=tokens, total_s=times[-1])


def test_joint_rate_counts_only_while_all_run() -> None:
    early = _answer([0.0, 1.0, 2.0, 3.0, 4.0], 5)
    late = _answer([2.0, 3.0, 4.0, 5.0, 6.0], 5)
    assert joint_rate([(0.0, early), (0.0, late)]) == pytest.approx(2.0)


def test_joint_rate_knows_when_each_began() -> None:
    first = _answer([0.0, 1.0, 2.0], 3)
    assert joint_rate([(0.0, first), (1.0, first)]) == pytest.approx(2.0)


def test_joint_rate_weighs_pieces_by_their_tokens() -> None:
    assert joint_rate([(0.0, _answer([0.0, 1.0, 2.0, 3.0], 8))]) == pytest.approx(2.0)


def test_sequences_that_never_run_together_have_no_rate() -> None:
    assert joint_rate([(0.0, _answer([0.0, 1.0], 2)), (5.0, _answer([0.0, 1.0], 2))]) == 0.0


@dataclass
class FakeGateway:
    """Reuses the longest prefix it has seen, and takes 1 ms per new token, 10 ms besides. Drafts halve its steps."""

    seen: list[list[int] | str] = field(default_factory=list)

    def complete(self, body: Body) -> Answer:
        prompt: list[int] | str = body["prompt"]
        reused = max((_common(prompt, old) for old in self.seen), default=0)
        self.seen.append(prompt)
        compute_s = (len(prompt) - reused) / 1000
        first_s = compute_s + 0.010
        count = body["max_tokens"]
        token_s, steps = (0.05, count // 2) if body.get("drafts", True) else (0.1, count - 1)
        return Answer(
            piece_times_s=[first_s + token_s * n for n in range(count)],
            total_s=first_s,
            finish="length",
            prompt_tokens=len(prompt),
            completion_tokens=count,
            cached_tokens=reused,
            mooncake=Mooncake(
                loaded_bytes=reused, timing={"compute_s": compute_s, "decode_steps": steps}
            ),
        )


def _common(a: list[int] | str, b: list[int] | str) -> int:
    return next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def test_estimate_grows_with_the_plan_and_is_said_coarsely() -> None:
    quick = ServePlan(model="m", vocab_size=100, prefixes=(777, 2048), suffixes=(64,), repeats=1)
    whole = ServePlan(model="m", vocab_size=100)
    # 3000 tokens of cold prompts, 6700 to fill for decode, twice 192 steps worth 60 to 130: at 1000 tokens a second
    assert estimate_s(quick, 1000.0) == pytest.approx(48, abs=4)
    assert estimate_s(whole, 1000.0) > 5 * estimate_s(quick, 1000.0)
    # cold prompts, and those that fill, once more
    assert estimate_s(quick, 1000.0, num_engines=2) == pytest.approx(58, abs=4)
    assert estimate_s(whole, 2000.0) < estimate_s(whole, 1000.0)
    assert [about(s) for s in (1.0, 41.0, 89.0, 400.0)] == [
        "about 5 s",
        "about 40 s",
        "about 90 s",
        "about 7 min",
    ]


@dataclass
class CountingOracle:
    """Takes no time, remembers the order of what it was asked, and what it was told."""

    gateway: FakeGateway
    asked: list[tuple[str, int]] = field(default_factory=list)
    asked_behind: list[int] = field(default_factory=list)
    kept: list[tuple[str, str, float, float]] = field(default_factory=list)

    def measure(self, what: str, number: int) -> float:
        self.asked.append((what, number))
        self.asked_behind.append(len(self.gateway.seen))
        return 500.0

    def keep(self, what: str, name: str, its_rate: float, our_rate: float) -> None:
        self.kept.append((what, name, its_rate, our_rate))

    def rates(self) -> dict[str, dict[str, float]]:
        return {"prefill_ratio": {"100": 1.0}, "decode_ratio": {"2": 2.0}}


def test_the_oracle_measures_the_same_prompts_in_turns_now_before_now_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcctl.bench.serve._SETTLE_S", 0.0)
    oracle = CountingOracle(gateway := FakeGateway())
    plan = ServePlan(
        model="m", vocab_size=50_000, prefixes=(100,), suffixes=(10, 20), batches=(2,), repeats=2
    )
    bench = ServeBench(gateway, plan, oracle=oracle)  # type: ignore[arg-type]  # what it calls
    assert bench.run("bfloat16").oracle == oracle.rates()
    assert oracle.asked == [("prefill", 110)] * 2 + [("prefill", 120)] * 2 + [("decode", 2)] * 2
    # Three requests come first. Of each pair of a cold and a reused one: behind the cold one, then before both.
    first = 3
    assert oracle.asked_behind[:4] == [first + 1, first + 2, first + 5, first + 6]
    # Two prompts are put into the pool, then both are decoded with and without drafts.
    assert oracle.asked_behind[4:] == [first + 8 + 6, first + 8 + 6 + 2]
    assert [kept[:3] for kept in oracle.kept] == [("prefill", "100", 500.0)] * 4 + [
        ("decode", "2", 500.0)
    ] * 2
    assert [kept[3] for kept in oracle.kept[:4]] == pytest.approx([1000.0] * 4)
    assert [kept[3] for kept in oracle.kept[4:]] == pytest.approx([40.0] * 2, rel=0.2)


def test_rows_hold_exact_lengths_and_what_is_not_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcctl.bench.serve._SETTLE_S", 0.0)
    plan = ServePlan(
        model="m", vocab_size=50_000, prefixes=(100, 300), suffixes=(10,), batches=(2,), repeats=2
    )
    result = ServeBench(FakeGateway(), plan).run("bfloat16")  # type: ignore[arg-type]  # what it calls
    assert [(row.prefix_tokens, row.suffix_tokens) for row in result.rows] == [(100, 10), (300, 10)]
    row = result.rows[1]
    assert row.ttft_cold_s == pytest.approx(0.320)
    assert row.ttft_reused_s == pytest.approx(0.020, abs=0.002)
    assert row.overhead_s == pytest.approx(0.010)
    assert row.reused_tokens == 300
    assert result.prefill_tok_s["300"] == pytest.approx(1000)
    assert result.decode_tok_s["2"] == pytest.approx(40, rel=0.2)
    assert result.decode_plain_tok_s["2"] == pytest.approx(20, rel=0.2)
    assert result.decode_tokens_a_step["2"] == pytest.approx(63 / 32)
    assert result.gb_moved > 0
