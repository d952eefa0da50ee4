"""A check at start, on the real model and machine, that reuse cannot change a token.

Whether kernels round alike in different company depends on the CPU, the library build and the
model's shapes; this asks the only judge there is. About one second for a small model.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from daemons.core.errors import Exhausted
from daemons.engine.arena.kv_arena import KvSlot
from daemons.engine.checkpoint.checkpoint import give_back_free_memory
from daemons.engine.decode.forms import KEY_GRIDS
from daemons.engine.geometry import CHUNK_TOKENS
from daemons.engine.runner import DecodeRow, Runner

PROMPT_TOKENS = CHUNK_TOKENS + 141  # ends off every edge
DECODE_STEPS = 6  # across a chunk boundary
BRIEF_STEPS = 2  # one on either side
COMPANIONS = (0, 17, 100, 255)  # positions of the rows that share the batch


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """`reuse_equal`: prefixes may be reused; `decode_equal`: KV made by decode may be published."""

    reuse_equal: bool
    decode_equal: bool
    elapsed_s: float
    reason: str | None
    draft_reason: str | None = None
    """Why drafts may not be tried; None where they change nothing."""


def run_canary(runner: Runner, known_signature: str | None = None) -> CanaryResult:
    """Compare bit for bit. Needs a mostly free arena.

    `known_signature` is of an earlier start of the same machine, code and model that found no difference: where all KV
    of the prompt is the same bits again, fewer of the same comparisons are made.
    Tells the runner what it saw: `is_decode_canonical`, `draft_lengths` and `kv_signature`.
    """
    begin = time.monotonic()
    try:
        reuse_reason, decode_reason, draft_reason = find_differences(runner, known_signature)
    except Exhausted as error:
        reuse_reason = f"the KV arena has no room for the canary: {error}"
        decode_reason = draft_reason = reuse_reason
    runner.is_decode_canonical = decode_reason is None
    if draft_reason is None:
        runner.draft_lengths = possible_draft_lengths(runner)
    give_back_free_memory()
    return CanaryResult(
        reuse_equal=reuse_reason is None,
        decode_equal=decode_reason is None,
        elapsed_s=time.monotonic() - begin,
        reason=reuse_reason or decode_reason,
        draft_reason=draft_reason,
    )


def find_differences(
    runner: Runner, known_signature: str | None = None
) -> tuple[str | None, str | None, str | None]:
    """What differs under reuse, in decode, and in decode with drafts; None is nothing."""
    num_tokens = min(PROMPT_TOKENS, runner.max_positions)
    tokens = [index * 7919 % runner.config.vocab_size for index in range(num_tokens)]
    with slots(runner, [num_tokens, num_tokens]) as (whole, part):
        logits = runner.prefill(whole, tokens)
        runner.kv_signature = signature(whole.kv[:, :, :num_tokens])
        reuse = None
        is_brief = runner.kv_signature == known_signature
        block = runner.arena.geometry.block_tokens
        splits = (num_tokens // block * block, CHUNK_TOKENS, 2 * block)[: 1 if is_brief else 3]
        for split in splits:
            if 0 < split < num_tokens and reuse is None:
                copy_prefix(part, whole, split)
                same = torch.equal(runner.prefill(part, tokens, split), logits)
                if not (same and same_kv(part, whole, 0, num_tokens)):
                    reuse = f"a prefix of {split} tokens, reused, changes the rest of {num_tokens}"
        num_steps = BRIEF_STEPS if is_brief else DECODE_STEPS
        if reuse is None and not is_brief:
            reuse = find_length_difference(runner, tokens, whole, part)
        decode = find_decode_difference(runner, tokens, (whole, part), logits, num_steps)
        lengths = possible_draft_lengths(runner)[-1 if is_brief else 0 :]
        drafted = decode or find_draft_difference(runner, tokens, (whole, part), lengths)
        return reuse, decode, drafted


def find_length_difference(
    runner: Runner, tokens: list[int], whole: KvSlot, part: KvSlot
) -> str | None:
    """The last rows of a shorter prompt, whose keys end soon behind them, against the same rows amid their chunk."""
    end = CHUNK_TOKENS + KEY_GRIDS[0]
    if end >= len(tokens):
        return None
    copy_prefix(part, whole, CHUNK_TOKENS)
    runner.prefill(part, tokens[:end], CHUNK_TOKENS)
    if same_kv(part, whole, CHUNK_TOKENS, end):
        return None
    return f"the KV of {end} tokens is other than that of the first {end} of {len(tokens)}"


def find_decode_difference(
    runner: Runner,
    tokens: list[int],
    pair: tuple[KvSlot, KvSlot],
    logits: torch.Tensor,
    num_steps: int,
) -> str | None:
    """Decode alone against prefill, then in company against alone."""
    whole, part = pair
    last = len(tokens) - 1
    copy_prefix(part, whole, last)
    if not torch.equal(runner.decode([DecodeRow(part, tokens[last], last)])[0], logits):
        return f"a decode step at position {last} gives other logits than prefill"
    first = min(CHUNK_TOKENS - num_steps // 2, last - num_steps)
    with companions(runner, tokens) as others:
        for position in range(max(first, 0), first + num_steps):
            row = DecodeRow(part, tokens[position], position)
            alone = runner.decode([row])[0]
            if not same_kv(part, whole, position, position + 1):
                return f"a decode step at position {position} writes other KV than prefill"
            if not torch.equal(runner.decode([*others, row])[-1], alone):
                return f"a decode step at position {position} depends on the rest of its batch"
            if not same_kv(part, whole, position, position + 1):
                return f"KV at position {position} depends on the rest of the decode batch"
    return None


def find_draft_difference(
    runner: Runner, tokens: list[int], pair: tuple[KvSlot, KvSlot], lengths: Sequence[int]
) -> str | None:
    """Right drafts against prefill and single steps, across an edge of the key grid, alone and in company."""
    whole, part = pair
    with companions(runner, tokens) as others:
        for length in lengths:
            start = draft_start(len(tokens), length)
            end = start + 1 + length
            copy_prefix(part, whole, end)
            single = runner.decode([DecodeRow(part, tokens[end - 1], end - 1)])[0]
            row = DecodeRow(part, tokens[start], start, tuple(tokens[start + 1 : end]))
            for company in ([], others):
                part.kv[:, :, start:end] = 0
                logits = runner.decode([*company, row])
                if not (torch.equal(logits[-1], single) and same_kv(part, whole, start, end)):
                    return (
                        f"{length} drafts at position {start} give other results than single steps"
                    )
    return None


def possible_draft_lengths(runner: Runner) -> tuple[int, ...]:
    return tuple(number - 1 for number in sorted(runner.decode_attention.forms) if number > 1)


def draft_start(num_tokens: int, length: int) -> int:
    """A position from which a token and so many drafts lie in one chunk, if possible on both sides of a key edge."""
    edge = (num_tokens - 1) // KEY_GRIDS[0] * KEY_GRIDS[0]
    if edge % CHUNK_TOKENS == 0:
        edge -= KEY_GRIDS[0]
    return max(0, min(edge - (length + 1) // 2, num_tokens - 1 - length))


@contextmanager
def companions(runner: Runner, tokens: list[int]) -> Iterator[list[DecodeRow]]:
    """Rows to share a batch with."""
    last = len(tokens) - 1
    with slots(runner, [position + 1 for position in COMPANIONS]) as company:
        yield [
            DecodeRow(slot, tokens[position % last], min(position, last))
            for slot, position in zip(company, COMPANIONS, strict=True)
        ]


@contextmanager
def slots(runner: Runner, sizes: list[int]) -> Iterator[list[KvSlot]]:
    """Slots for as long as the block runs."""
    taken: list[KvSlot] = []
    try:
        taken.extend(runner.arena.allocate(size) for size in sizes)
        yield taken
    finally:
        for slot in taken:
            runner.arena.free(slot)


def signature(kv: torch.Tensor) -> str:
    """Two machines that round alike give one answer; library names and CPU flags only hint at it."""
    data = kv.contiguous().view(torch.uint8).cpu().numpy()
    return hashlib.blake2b(data.tobytes(), digest_size=8).hexdigest()


def copy_prefix(target: KvSlot, source: KvSlot, num_tokens: int) -> None:
    target.kv[:, :, :num_tokens] = source.kv[:, :, :num_tokens]


def same_kv(one: KvSlot, other: KvSlot, start: int, end: int) -> bool:
    return torch.equal(one.kv[:, :, start:end], other.kv[:, :, start:end])
