"""`mcctl bench serve`: cold and reused TTFT over exact prompt lengths, prefill and decode rates, through the HTTP API.

Cold prompts begin with tokens never sent before, so nothing of them is in the pool; the reused one of a pair has the
same prefix and another suffix. Every figure is the median over repeats.

Those prompts are random tokens. What is decoded is text: answers to questions about parts of a document, since drafts
(mc-decode.toml(5), engine.draft_tokens) live on what a text repeats; each answer is decoded with and without them.
"""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import mean, median
from typing import Final

from daemons.simulation.hardware import KvSizes
from mcctl.bench.oracle import Measure, Oracle
from mcctl.bench.serve_result import ServeResult, ServeRow
from mcctl.openai_stream import Answer, Body, OpenAiClient
from mcctl.traffic import QUESTIONS

Progress = Callable[[str], object]

PREFIXES: Final = (512, 1024, 2048, 4096, 777, 2300, 3001)
SUFFIXES: Final = (1, 33, 64)
BATCHES: Final = (1, 4, 8)
QUICK_PREFIXES: Final = (777, 2048)
QUICK_SUFFIXES: Final = (64,)
DECODE_CONTEXT: Final = 512
DECODE_TOKENS: Final = 64
_TEXT_CHARS: Final = 2000
"""Of a document, before a question: about DECODE_CONTEXT tokens."""
_TEXT_STEP: Final = 700
_FIRST_TOKEN_ID: Final = 16
"""Below it are the control tokens of most vocabularies."""
_CHUNK_TOKENS: Final = 128
"""Of a reused prompt, computed on average: what the last full block and the grid leave."""
_SLOWER_TOKENS: Final = 8192
_STEP_TOKENS: Final = 50
_ROW_TOKENS: Final = 10
_SETTLE_S: Final = 0.1
"""From the end of a request until the pool surely knows its blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What to measure."""

    model: str
    vocab_size: int
    prefixes: tuple[int, ...] = PREFIXES
    suffixes: tuple[int, ...] = SUFFIXES
    batches: tuple[int, ...] = BATCHES
    repeats: int = 3
    seed: int = field(default_factory=time.time_ns)
    kv: KvSizes | None = None
    """Of the cluster; only told on."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    """One batch of one size."""

    tok_s: float
    plain_tok_s: float
    tokens_a_step: float
    context_tokens: float


@dataclass(slots=True)
class ServeBench:
    """Runs a plan; `moved_bytes` adds up over all requests."""

    client: OpenAiClient
    plan: ServePlan
    progress: Progress = lambda _: None
    oracle: Oracle | None = None
    moved_bytes: int = 0
    _random: random.Random = field(init=False)
    _prefill_rates: dict[str, list[float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.plan.seed)

    def run(self, dtype: str) -> ServeResult:
        # The first request pays for what is made on first use; the second says how fast this machine is.
        self._first_tokens([self._tokens(128)] * 2)
        (probe,) = self._first_tokens([self._tokens(DECODE_CONTEXT)])
        tok_s = probe.prompt_tokens / max(probe.ttft_s, 1e-6)
        takes_s = estimate_s(self.plan, tok_s, num_engines=1 if self.oracle is None else 2)
        self.progress(f"this takes {about(takes_s)}")
        rows = list(self._rows())
        decode = {str(batch): list(self._decoded(batch)) for batch in self.plan.batches}
        every = [each for measured in decode.values() for each in measured]

        def medians(of: Callable[[_Decoded], float]) -> dict[str, float]:
            return {batch: median(map(of, each)) for batch, each in decode.items()}

        return ServeResult(
            model=self.plan.model,
            dtype=dtype,
            repeats=self.plan.repeats,
            rows=rows,
            prefill_tok_s={length: median(rates) for length, rates in self._prefill_rates.items()},
            decode_tok_s=medians(lambda each: each.tok_s),
            decode_plain_tok_s=medians(lambda each: each.plain_tok_s),
            decode_tokens_a_step=medians(lambda each: each.tokens_a_step),
            gb_moved=self.moved_bytes / 1e9,
            oracle=None if self.oracle is None else self.oracle.rates(),
            kv=self.plan.kv,
            decode_context_tokens=round(mean(each.context_tokens for each in every)),
        )

    def _rows(self) -> Iterator[ServeRow]:
        pairs = [(p, s) for p in self.plan.prefixes for s in self.plan.suffixes]
        for number, (prefix, suffix) in enumerate(pairs, 1):
            measured = []
            for repeat in range(1, self.plan.repeats + 1):
                self.progress(
                    f"{number}/{len(pairs)}: prefix {prefix}, suffix {suffix}, repeat {repeat}"
                )
                shared = self._tokens(prefix)
                prompts = [shared + self._tokens(suffix) for _ in range(2)]
                with self._turn("prefill", str(prefix), prefix + suffix, repeat) as ours:
                    (cold,) = self._first_tokens(prompts[:1])
                    rate = cold.prompt_tokens / max(_compute_s(cold), 1e-9)
                    ours.append(rate)
                (reused,) = self._first_tokens(prompts[1:])
                measured.append((cold, reused))
                self._prefill_rates.setdefault(str(prefix), []).append(rate)
            yield _row(prefix, suffix, measured)

    def _first_tokens(self, prompts: list[list[int]] | list[str]) -> list[Answer]:
        answers = []
        for prompt in prompts:
            answers.append(self._complete(prompt, max_tokens=1))
            time.sleep(_SETTLE_S)
        return answers

    def _decoded(self, batch: int) -> Iterator[_Decoded]:
        """Prompts are put into the pool first, so that all sequences start nearly together."""
        prompts = [decode_prompt(number) for number in range(batch)]
        for repeat in range(1, self.plan.repeats + 1):
            self.progress(f"decode, batch {batch}, repeat {repeat}")
            self._first_tokens(prompts)
            # In turns: whichever comes first may still share the machine with the prompts' way into the pool.
            order = (True, False) if repeat % 2 else (False, True)
            with self._turn("decode", str(batch), batch, repeat) as ours:
                timed = {drafts: self._together(prompts, drafts=drafts) for drafts in order}
                ours.append(joint_rate(timed[True]))
            answers = [answer for _, answer in timed[True]]
            yield _Decoded(
                ours[0],
                joint_rate(timed[False]),
                tokens_a_step(answers),
                mean(answer.prompt_tokens + answer.completion_tokens / 2 for answer in answers),
            )

    @contextmanager
    def _turn(self, what: Measure, name: str, number: int, repeat: int) -> Iterator[list[float]]:
        """The oracle measures `number` right before or right after what runs inside, which says its rate."""
        ours: list[float] = []
        is_first = repeat % 2 == 0
        if self.oracle is None:
            yield ours
        elif is_first:
            its_rate = self.oracle.measure(what, number)
            yield ours
            self.oracle.keep(what, name, its_rate, ours[0])
        else:
            yield ours
            self.oracle.keep(what, name, self.oracle.measure(what, number), ours[0])

    def _together(self, prompts: list[str], *, drafts: bool) -> list[tuple[float, Answer]]:
        def timed(prompt: str) -> tuple[float, Answer]:
            started_s = time.perf_counter()
            return started_s, self._complete(prompt, max_tokens=DECODE_TOKENS, drafts=drafts)

        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(timed, prompts))

    def _complete(self, prompt: list[int] | str, *, max_tokens: int, drafts: bool = True) -> Answer:
        body: Body = {
            "model": self.plan.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        if not drafts:
            body["drafts"] = False
        answer = self.client.complete(body)
        self.moved_bytes += answer.mooncake.loaded_bytes + answer.mooncake.pulled_bytes
        return answer

    def _tokens(self, count: int) -> list[int]:
        ids = range(_FIRST_TOKEN_ID, self.plan.vocab_size)
        return self._random.choices(ids, k=count)


def estimate_s(plan: ServePlan, tok_s: float, *, num_engines: int = 1) -> float:
    """How long a plan takes where a prompt is computed at `tok_s`; longer prompts are a little slower a token.

    An oracle is a second engine: it computes cold prompts and fills for decode too.
    """
    pairs = [(prefix, suffix) for prefix in plan.prefixes for suffix in plan.suffixes]
    cold_tokens = sum((prefix + suffix) * (1 + prefix / _SLOWER_TOKENS) for prefix, suffix in pairs)
    reused_tokens = sum(_CHUNK_TOKENS + suffix for _, suffix in pairs)
    decode_tokens = sum(plan.batches) * DECODE_CONTEXT
    # A decode step costs about what so many tokens of a prompt do: reading all weights, then a little a row.
    step_tokens = (
        sum(_STEP_TOKENS + _ROW_TOKENS * batch for batch in plan.batches) * DECODE_TOKENS * 2
    )
    settle_s = (2 * len(pairs) + sum(plan.batches)) * _SETTLE_S
    computed = num_engines * (cold_tokens + decode_tokens) + reused_tokens + step_tokens
    return plan.repeats * (computed / tok_s + settle_s)


def decode_prompt(number: int) -> str:
    """A part of a document, and a question about it; another one for each number."""
    document = files("mcctl").joinpath("quickstart_document.txt").read_text(encoding="utf-8")
    start = number * _TEXT_STEP % (len(document) - _TEXT_CHARS)
    question = QUESTIONS[number % len(QUESTIONS)]
    return f"{document[start : start + _TEXT_CHARS]}\n\nQuestion: {question}\nAnswer:"


def tokens_a_step(answers: list[Answer]) -> float:
    """The first token of each is prefill's."""
    steps = sum(answer.mooncake.timing.get("decode_steps", 0) for answer in answers)
    return sum(answer.completion_tokens - 1 for answer in answers) / steps if steps else 0.0


def about(seconds: float) -> str:
    """As coarse as it is known."""
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} s"
    return f"about {round(seconds / 60)} min"


def joint_rate(timed: list[tuple[float, Answer]]) -> float:
    """Tokens per second of all sequences, from when the last one began until the first one ended.

    A piece of text may hold more than one token, so pieces are weighed by tokens per piece of their answer.
    """
    begin_s = max(offset + answer.piece_times_s[0] for offset, answer in timed)
    end_s = min(offset + answer.piece_times_s[-1] for offset, answer in timed)
    if end_s <= begin_s:
        return 0.0
    tokens = 0.0
    for offset, answer in timed:
        inside = sum(begin_s < offset + piece_s <= end_s for piece_s in answer.piece_times_s)
        tokens += inside * answer.completion_tokens / len(answer.piece_times_s)
    return tokens / (end_s - begin_s)


def _row(prefix: int, suffix: int, measured: list[tuple[Answer, Answer]]) -> ServeRow:
    cold = [pair[0] for pair in measured]
    reused = [pair[1] for pair in measured]
    ttft_cold_s = median(answer.ttft_s for answer in cold)
    ttft_reused_s = median(answer.ttft_s for answer in reused)
    overhead_s = median(answer.ttft_s - _compute_s(answer) for answer in reused)
    return ServeRow(
        prefix_tokens=prefix,
        suffix_tokens=suffix,
        ttft_cold_s=ttft_cold_s,
        ttft_reused_s=ttft_reused_s,
        ratio=ttft_cold_s / ttft_reused_s,
        overhead_s=overhead_s,
        overhead_share=overhead_s / ttft_reused_s,
        overhead_cold_s=median(answer.ttft_s - _compute_s(answer) for answer in cold),
        compute_cold_s=median(_compute_s(answer) for answer in cold),
        compute_reused_s=median(_compute_s(answer) for answer in reused),
        load_s=median(answer.mooncake.timing.get("load_s", 0.0) for answer in reused),
        load_wait_s=median(answer.mooncake.timing.get("load_wait_s", 0.0) for answer in reused),
        reused_tokens=min(answer.cached_tokens for answer in reused),
    )


def _compute_s(answer: Answer) -> float:
    return answer.mooncake.timing.get("compute_s", 0.0)
