"""What `mcctl bench` prints for people, a table for each benchmark."""

from daemons.core.units import format_milliseconds, format_size
from mcctl import render
from mcctl.bench.serve_result import ServeResult
from mcctl.render import Column

SERVE_COLUMNS = [
    Column("prefix", lambda row: str(row.prefix_tokens), is_number=True),
    Column("suffix", lambda row: str(row.suffix_tokens), is_number=True),
    Column("cold TTFT", lambda row: format_milliseconds(row.ttft_cold_s), is_number=True),
    Column("reused TTFT", lambda row: format_milliseconds(row.ttft_reused_s), is_number=True),
    Column("ratio", lambda row: f"{row.ratio:.1f}x", is_number=True),
    Column("not compute", lambda row: format_milliseconds(row.overhead_s), is_number=True),
    Column("share", lambda row: f"{row.overhead_share:.0%}", is_number=True),
    Column("reused", lambda row: str(row.reused_tokens), is_number=True),
]


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


TRANSFER_COLUMNS = [
    Column("path", lambda row: row.transport),
    Column("op", lambda row: row.operation),
    Column("size", lambda row: format_size(row.size_bytes), is_number=True),
    Column("batch", lambda row: str(row.batch), is_number=True),
    Column("GB/s", lambda row: f"{row.gb_s:.2f}", is_number=True),
    Column("limit", lambda row: _or_dash(row.limit_gb_s, ".2f"), is_number=True),
    Column("ratio", lambda row: _or_dash(row.ratio, ".2f"), is_number=True),
    Column("p50 us", lambda row: f"{row.p50_us:.1f}", is_number=True),
    Column("limit us", lambda row: _or_dash(row.limit_p50_us, ".1f"), is_number=True),
    Column("CPU s/GB", lambda row: f"{row.cpu_s_per_gb:.2f}", is_number=True),
]


BESIDE_COLUMNS = [
    Column("published", lambda row: row.variant),
    Column("op", lambda row: row.operation),
    Column("size", lambda row: format_size(row.size_bytes), is_number=True),
    Column("batch", lambda row: str(row.batch), is_number=True),
    Column("GB/s", lambda row: f"{row.gb_s:.2f}", is_number=True),
    Column("p50 us", lambda row: f"{row.p50_us:.1f}", is_number=True),
    Column("ours by it", lambda row: f"{row.ratio:.2f}", is_number=True),
]


CONDUCTOR_COLUMNS = [
    Column("instances", lambda row: str(row.num_instances), is_number=True),
    Column("blocks", lambda row: str(row.num_blocks), is_number=True),
    Column("policy", lambda row: row.policy),
    Column("decisions/s", lambda row: f"{row.decisions_per_s:.0f}", is_number=True),
    Column("p50", lambda row: format_milliseconds(row.p50_s), is_number=True),
    Column("p99", lambda row: format_milliseconds(row.p99_s), is_number=True),
    Column("bare match", lambda row: format_milliseconds(row.match_p50_s), is_number=True),
    Column("ratio", lambda row: f"{row.ratio:.2f}", is_number=True),
]


STORE_COLUMNS = [
    Column("measure", lambda row: row.what),
    Column("value", lambda row: f"{row.value:.2f}", is_number=True),
    Column("limit", lambda row: f"{row.limit:.2f}", is_number=True),
    Column("unit", lambda row: row.unit),
    Column("ratio", lambda row: f"{row.ratio:.2f}", is_number=True),
    Column("the limit is", lambda row: row.limit_is, extra=1),
]


STORE_BESIDE_COLUMNS = [
    Column("measure", lambda row: row.what),
    Column("bytes go by", lambda row: row.way),
    Column("ours", lambda row: f"{row.ours:.2f}", is_number=True),
    Column("published", lambda row: f"{row.published:.2f}", is_number=True),
    Column("unit", lambda row: row.unit),
    Column("ratio", lambda row: f"{row.ratio:.2f}", is_number=True),
]


SSD_COLUMNS = [
    Column("measure", lambda row: row.what),
    Column("size", lambda row: format_size(row.size_bytes), is_number=True),
    Column("threads", lambda row: str(row.threads), is_number=True),
    Column("value", lambda row: _rate(row.value, row.unit), is_number=True),
    Column("plain", lambda row: _rate(row.limit, row.unit), is_number=True),
    Column("unit", lambda row: row.unit),
    Column("ratio", lambda row: f"{row.ratio:.2f}", is_number=True),
]


WRITER_COLUMNS = [
    Column("writers", lambda row: str(row.writers), is_number=True),
    Column("GB/s", lambda row: f"{row.gb_s:.2f}", is_number=True),
    Column("memcpy + xxh3 GB/s", lambda row: f"{row.limit_gb_s:.2f}", is_number=True),
    Column("look-up p99 us", lambda row: f"{row.lookup_p99_us:.0f}", is_number=True),
]


def _rate(value: float, unit: str) -> str:
    return f"{value:.2f}" if unit == "GB/s" else f"{value:.0f}"


def show_served(result: ServeResult, *, on_stderr: bool) -> None:
    """A table of the rows, then rates over all of them."""
    title = f"{result.model} ({result.dtype}), median of {result.repeats}"
    render.show_table(title, SERVE_COLUMNS, result.rows, on_stderr=on_stderr)
    facts = [
        ("prefill tok/s", _rates(result.prefill_tok_s)),
        ("decode tok/s", _rates(result.decode_tok_s)),
        ("tokens a step", _rates(result.decode_tokens_a_step, digits=2)),
        ("without drafts", _rates(result.decode_plain_tok_s)),
    ]
    if result.oracle is not None:
        facts += [
            ("transformers prefill", _rates(result.oracle["prefill_tok_s"])),
            ("transformers decode", _rates(result.oracle["decode_tok_s"])),
            ("prefill to its, in pairs", _rates(result.oracle["prefill_ratio"], digits=2)),
            ("decode to its, in pairs", _rates(result.oracle["decode_ratio"], digits=2)),
        ]
    facts.append(("moved", f"{result.gb_moved:.2f} GB"))
    render.show_facts(facts, on_stderr=on_stderr)


def _rates(rates: dict[str, float], digits: int = 0) -> str:
    return ", ".join(f"{key}: {rate:.{digits}f}" for key, rate in rates.items())
