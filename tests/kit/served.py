"""What `mcctl bench serve` might have printed, of a machine of stated times."""

from typing import Any

import msgspec

from daemons.simulation.hardware import KvSizes
from mcctl.bench.serve_result import ServeResult, ServeRow

FIXED_S, TOKEN_S = 0.2, 3e-3


def serve_row(prefix: int, suffix: int, *, load_s: float = 0.0) -> ServeRow:
    cold_s, reused_s = FIXED_S + TOKEN_S * (prefix + suffix), FIXED_S + TOKEN_S * suffix
    return ServeRow(
        prefix_tokens=prefix,
        suffix_tokens=suffix,
        ttft_cold_s=cold_s,
        ttft_reused_s=reused_s + load_s / 2,
        ratio=cold_s / reused_s,
        overhead_s=0.0,
        overhead_share=0.0,
        overhead_cold_s=0.0,
        compute_cold_s=cold_s,
        compute_reused_s=reused_s,
        load_s=load_s,
        load_wait_s=load_s / 2,
        reused_tokens=prefix,
    )


def served(**changed: Any) -> ServeResult:
    result = ServeResult(
        model="tiny",
        dtype="bfloat16",
        repeats=3,
        rows=[serve_row(256, 64), serve_row(768, 64, load_s=0.002), serve_row(1536, 64)],
        prefill_tok_s={},
        decode_tok_s={"1": 8.0, "4": 24.0},
        decode_plain_tok_s={"1": 4.0, "4": 12.5},
        decode_tokens_a_step={"1": 2.0, "4": 2.0},
        gb_moved=0.1,
        kv=KvSizes(bytes_per_token=1000, num_layers=3, device_tokens=5000, dram_tokens=7000),
        decode_context_tokens=500,
    )
    return msgspec.structs.replace(result, **changed)
