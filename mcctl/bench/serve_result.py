"""What `mcctl bench serve` found: its JSON, which `mcctl simulate fit` reads again."""

import msgspec

from daemons.simulation.hardware import KvSizes


class ServeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of lengths. `overhead_s`: of the reused TTFT, all that is not model compute."""

    prefix_tokens: int
    suffix_tokens: int
    ttft_cold_s: float
    ttft_reused_s: float
    ratio: float
    overhead_s: float
    overhead_share: float
    overhead_cold_s: float
    compute_cold_s: float
    compute_reused_s: float
    load_s: float
    load_wait_s: float
    reused_tokens: int


class ServeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `--output json` prints; fields are only ever added."""

    model: str
    dtype: str
    repeats: int
    rows: list[ServeRow]
    prefill_tok_s: dict[str, float]
    """By prompt length: prompt tokens per second of model compute, nothing reused."""
    decode_tok_s: dict[str, float]
    """By batch size: tokens of all sequences together, while all of them run, as served."""
    decode_plain_tok_s: dict[str, float]
    """The same of the same prompts without drafts."""
    decode_tokens_a_step: dict[str, float]
    """As served: tokens of a sequence for each step of decode. 1: no draft was right; 0: the cluster does not say."""
    gb_moved: float
    oracle: dict[str, dict[str, float]] | None = None
    """The same two by plain transformers, in turns with ours; prefill_ratio and decode_ratio: ours to its, by pairs."""
    kv: KvSizes | None = None
    """Of one instance, as in a hardware profile of `mcctl simulate`; null where the master does not say, 0: none."""
    decode_context_tokens: int = 0
    """Of each sequence while it was decoded, on average."""
