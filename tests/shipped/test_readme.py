"""README: its sample of `make quickstart` is what that prints, but for the figures."""

import re
from pathlib import Path

import pytest

from mcctl.commands.quickstart import QuickstartResult, show
from mcctl.traffic import QUESTIONS, TURNS, Row

_ANSWER = (
    "If it starts to rain while the dome is open, the society will not allow the dome to be opened until the sky is "
    "clear."
)
_FIGURE = re.compile(r"[\d.]+( (?:ms|s|min|MiB|GiB)\b)?")


def _shape(text: str) -> list[str]:
    """Lines without figures, and whatever room their columns have."""
    lines = (_FIGURE.sub("#", re.sub(r"[─\s]+", " ", line)).strip() for line in text.splitlines())
    return [line for line in lines if line]


def _row(scenario: str, question: str) -> Row:
    return Row(
        scenario=scenario, question=question, answer=_ANSWER, is_equal=True, prompt_tokens=1711, reused_tokens=1664,
        generated_tokens=1, ttft_s=0.1, ttft_bypass_s=0.1, tbt_s=0.1, prefill="prefill", decode="decode",
        published_blocks=0, pulled_bytes=0, loaded_bytes=0,
    )  # fmt: skip


def test_sample_is_what_quickstart_prints(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [_row("document", text) for text in QUESTIONS]
    rows += [_row("conversation", text) for text in TURNS]
    daemons = ("mc-master", "mc-cachenode", "mc-prefill", "mc-decode", "mc-gateway")
    result = QuickstartResult(
        answers_equal=True, reused_tokens=3648, prompt_tokens=5742, ttft_cold_s=1.5, ttft_reused_s=0.5,
        bytes_moved=200 << 20, blocks_stored=33, pool_bytes=40 << 20, memory_bytes=2 << 30, start_s=9.0,
        total_s=30.0, model="SmolLM2-135M-Instruct", dtype="bfloat16", requests=rows,
        pids=dict.fromkeys(daemons, 1),
    )  # fmt: skip
    show(result, on_stderr=False)
    printed = capsys.readouterr().out
    readme = (checkout / "README.md").read_text()
    sample = readme[readme.index("    SmolLM2-135M-Instruct (") : readme.index("(Two cores")]
    assert _shape(sample) == _shape(printed), "put a new one there: mcctl quickstart | cat"
