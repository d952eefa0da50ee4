"""The quickstart's traffic: a long document asked several questions, and a conversation; with and without the cache."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from statistics import median
from typing import Final

import msgspec

from mcctl.openai_stream import Answer, Body, OpenAiClient

MAX_TOKENS: Final = 32
QUESTIONS: Final = (
    "Who was the last keeper of the light, and when did she leave?",
    "What must keepers do if it starts to rain while the dome is open?",
    "How does a new member become a keeper?",
)
GUIDE: Final = (
    "You are the guide of a small seaside observatory. You greet every guest by name when you know it, you answer in "
    "one or two short sentences, and you never invent opening hours. Guests ask about the night sky, about the "
    "island and about the telescope. When a guest asks about the sky, say which constellation is easiest to find and "
    "how to find it with the bare eye. When a guest asks about the weather, remind them of a warm coat and a lamp with "
    "a red glass, since white light spoils the dark for everybody. When you do not know something, say so."
)
TURNS: Final = (
    "Hello! My name is Mira. What can I see in the sky in winter?",
    "And how do I find it without a telescope?",
    "Thank you. What should I bring with me?",
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request, sent twice: with the cache, and with `kv_cache: "bypass"`."""

    scenario: str
    question: str
    answer: str
    is_equal: bool
    """The answer without the cache is the same text."""
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    ttft_s: float
    ttft_bypass_s: float
    tbt_s: float | None
    prefill: str
    decode: str
    published_blocks: int
    pulled_bytes: int
    loaded_bytes: int
    answer_bypass: str | None = None
    """Only where it differs."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """TTFT: medians over the questions about the document that reused it, without and with the cache."""

    answers_equal: bool
    prompt_tokens: int
    reused_tokens: int
    ttft_cold_s: float
    ttft_reused_s: float
    bytes_moved: int
    """Loaded from the pool and pulled by decode from prefill."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`question` is its last line, as a table shows it."""

    scenario: str
    question: str
    messages: list[dict[str, str]]


def run_traffic(
    client: OpenAiClient, model: str, progress: Callable[[str], object]
) -> Iterator[Row]:
    """Rows as they are finished. The turns of the conversation hold the answers that came before."""
    document = files("mcctl").joinpath("quickstart_document.txt").read_text(encoding="utf-8")
    system = {
        "role": "system",
        "content": f"Answer from this handbook in one sentence.\n\n{document}",
    }
    for number, question in enumerate(QUESTIONS, 1):
        prompt = Prompt("document", question, [system, {"role": "user", "content": question}])
        yield _ask_twice(client, model, prompt, progress, f"document {number}/{len(QUESTIONS)}")
    history = [{"role": "system", "content": GUIDE}]
    for number, question in enumerate(TURNS, 1):
        history.append({"role": "user", "content": question})
        prompt = Prompt("conversation", question, list(history))
        row = _ask_twice(client, model, prompt, progress, f"conversation {number}/{len(TURNS)}")
        history.append({"role": "assistant", "content": row.answer})
        yield row


def total(rows: list[Row]) -> Totals:
    document = [row for row in rows if row.scenario == "document"]
    reusing = [row for row in document if row.reused_tokens] or document
    return Totals(
        answers_equal=all(row.is_equal for row in rows),
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        reused_tokens=sum(row.reused_tokens for row in rows),
        ttft_cold_s=median(row.ttft_bypass_s for row in reusing),
        ttft_reused_s=median(row.ttft_s for row in reusing),
        bytes_moved=sum(row.loaded_bytes + row.pulled_bytes for row in rows),
    )


def _ask_twice(
    client: OpenAiClient,
    model: str,
    prompt: Prompt,
    progress: Callable[[str], object],
    label: str,
) -> Row:
    body: Body = {
        "model": model,
        "messages": prompt.messages,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    progress(f"{label}: {prompt.question}")
    cached = client.chat(body)
    progress(f"{label}, again without the cache")
    bypass = client.chat(body | {"kv_cache": "bypass"})
    return _row(prompt, cached, bypass)


def _row(prompt: Prompt, cached: Answer, bypass: Answer) -> Row:
    is_equal = cached.text == bypass.text
    return Row(
        scenario=prompt.scenario,
        question=prompt.question,
        answer=cached.text,
        is_equal=is_equal,
        answer_bypass=None if is_equal else bypass.text,
        prompt_tokens=cached.prompt_tokens,
        reused_tokens=cached.cached_tokens,
        generated_tokens=cached.completion_tokens,
        ttft_s=cached.ttft_s,
        ttft_bypass_s=bypass.ttft_s,
        tbt_s=cached.tbt_s,
        prefill=cached.mooncake.prefill,
        decode=cached.mooncake.decode,
        published_blocks=cached.mooncake.published_blocks,
        pulled_bytes=cached.mooncake.pulled_bytes,
        loaded_bytes=cached.mooncake.loaded_bytes,
    )
