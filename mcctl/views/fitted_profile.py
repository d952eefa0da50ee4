"""What `mcctl simulate fit` makes of what `mcctl bench serve` measured: a hardware profile, and how well it fits."""

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Final

import msgspec

from daemons.core.errors import ConfigError
from daemons.core.units import format_milliseconds, parse_whole
from daemons.simulation.fitting import PrefillSample, StepSample, fit_decode, fit_prefill
from daemons.simulation.hardware import HardwareProfile, KvSizes, parse_profile
from mcctl.bench.serve_result import ServeResult
from mcctl.render import Column
from mcctl.views.fitted_rates import FittedRate, Measured, not_measured, rates_of

_LEAST_S: Final = 1e-6
"""A shorter time was not measured."""
_SECTIONS: Final = ("prefill", "decode", "kv", "bandwidth", "ssd", "object")


class FittedTime(msgspec.Struct, frozen=True, kw_only=True):
    """One measured time beside the profile's. `off`: of what was measured."""

    what: str
    measured_s: float
    fitted_s: float
    off: float


class FitResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `--output json` prints; fields are only ever added."""

    model: str
    dtype: str
    profile: HardwareProfile
    times: list[FittedTime]
    median_off: float
    most_off: float
    base: str
    of_base: list[str]
    """Keys of the profile that nothing here has measured: they are those of `base`."""
    decode_context_tokens: int
    """What each sequence had while decode was measured; `decode.sequence_s` has the cost of as much within it."""
    rates: list[FittedRate] = []
    """All of the profile's, and where each is from."""


FIT_COLUMNS: Final = [
    Column("what", lambda row: row.what),
    Column("measured", lambda row: format_milliseconds(row.measured_s), is_number=True),
    Column("profile", lambda row: format_milliseconds(row.fitted_s), is_number=True),
    Column("off", lambda row: f"{row.off:+.1%}", is_number=True),
]


def fitted(
    runs: Sequence[ServeResult],
    base: HardwareProfile,
    *,
    base_name: str,
    with_drafts: bool,
    rates: Mapping[str, Measured] = MappingProxyType({}),
) -> FitResult:
    """`rates`: by key, of other benchmarks. Raises ConfigError where the runs are of different models, or do not say
    all that a profile needs.
    """
    kv = _same_model(runs)
    prefills = [sample for run in runs for sample in _prefill_samples(run)]
    steps = [sample for run in runs for sample in _step_samples(run, with_drafts=with_drafts)]
    measured = dict(rates)
    if load := _load_rate(runs, kv):
        measured["bandwidth.load"] = Measured(load, "bench serve")
    of_base = list(not_measured(measured))
    sizes = {name: size for name, size in msgspec.structs.asdict(kv).items() if size}
    of_base += [f"kv.{name}" for name in msgspec.structs.asdict(kv) if name not in sizes]
    profile = msgspec.structs.replace(
        base,
        prefill=fit_prefill([sample for _, sample in prefills]),
        decode=fit_decode([sample for _, sample in steps]),
        kv=msgspec.structs.replace(base.kv, **sizes),
        bandwidth=msgspec.structs.replace(base.bandwidth, **_of("bandwidth", measured)),
        ssd=msgspec.structs.replace(base.ssd, **_of("ssd", measured)),
    )
    times = [
        *(_time(what, each.elapsed_s, each.fitted_s(profile.prefill)) for what, each in prefills),
        *(_time(what, each.elapsed_s, each.fitted_s(profile.decode)) for what, each in steps),
    ]
    errors = [abs(time.off) for time in times]
    return FitResult(
        model=runs[0].model,
        dtype=runs[0].dtype,
        profile=profile,
        times=times,
        median_off=median(errors),
        most_off=max(errors),
        base=base_name,
        of_base=of_base,
        decode_context_tokens=max(run.decode_context_tokens for run in runs),
        rates=rates_of(profile, base_name, measured),
    )


def profile_text(result: FitResult) -> str:
    """The TOML file, with where its numbers come from."""
    lines = [
        f"# {_one_line(result.model)} ({_one_line(result.dtype)}), by mcctl simulate fit from what mcctl bench serve "
        "measured.",
        f"# {len(result.times)} measured times are within {result.most_off:.1%} of this, half of them within "
        f"{result.median_off:.1%}.",
        *(
            f"# {rate.what}: by {_one_line(rate.source)}."
            for rate in result.rates
            if rate.is_measured and rate.what != "bandwidth.load"
        ),
        f"# Not measured, but of {_one_line(result.base)}: {', '.join(result.of_base)}.",
    ]
    if result.decode_context_tokens:
        lines.append(
            f"# sequence_s has what {result.decode_context_tokens} tokens of its context cost in it, context_token_s "
            "nothing."
        )
    for name in _SECTIONS:
        values = msgspec.structs.asdict(getattr(result.profile, name))
        lines += ["", f"[{name}]", *(f"{key} = {_number(value)}" for key, value in values.items())]
    text = "\n".join([*lines, ""])
    parse_profile(text, "fitted")  # refuses what nobody could read again
    return text


def _same_model(runs: Sequence[ServeResult]) -> KvSizes:
    """The sizes that they agree on."""
    first = runs[0]
    for run in runs:
        if (run.model, run.dtype) != (first.model, first.dtype):
            raise ConfigError(
                f"a profile is of one model: these runs are of {first.model} ({first.dtype}) and "
                f"{run.model} ({run.dtype})"
            )
        if run.kv is None or not (run.kv.bytes_per_token and run.kv.num_layers):
            raise ConfigError(
                f"a run of {run.model} does not say what a token's KV takes: its master was not asked, or mcctl was "
                "older; run mcctl bench serve again, with --own, or with --endpoint and the cluster's master"
            )
    assert first.kv is not None
    return first.kv


def _prefill_samples(run: ServeResult) -> Iterator[tuple[str, PrefillSample]]:
    for row in run.rows:
        length = row.prefix_tokens + row.suffix_tokens
        if row.ttft_cold_s > _LEAST_S:
            yield f"{length} tokens, cold", PrefillSample(length, 0, row.ttft_cold_s)
        # What was waited for is the load's, of which the profile has a rate.
        reused_s = row.ttft_reused_s - row.load_wait_s
        if 0 < row.reused_tokens < length and reused_s > _LEAST_S:
            what = f"{length} tokens, {row.reused_tokens} reused"
            yield what, PrefillSample(length, row.reused_tokens, reused_s)


def _step_samples(run: ServeResult, *, with_drafts: bool) -> Iterator[tuple[str, StepSample]]:
    for batch, tok_s in (run.decode_tok_s if with_drafts else run.decode_plain_tok_s).items():
        size = parse_whole(batch)
        if size and tok_s > 0:
            yield f"decode step, batch {size}", StepSample(size, size / tok_s)


def _load_rate(runs: Sequence[ServeResult], kv: KvSizes) -> float:
    """Bytes a second; 0 where nothing was loaded."""
    rows = [row for run in runs for row in run.rows if row.load_s > _LEAST_S]
    num_bytes = sum(row.reused_tokens for row in rows) * kv.bytes_per_token
    return num_bytes / sum(row.load_s for row in rows) if num_bytes else 0.0


def _of(section: str, measured: Mapping[str, Measured]) -> dict[str, float]:
    """What was measured of one section, by its own keys."""
    named = ((what.partition("."), rate) for what, rate in measured.items())
    return {key: rate.bytes_per_s for (of, _, key), rate in named if of == section}


def _time(what: str, measured_s: float, fitted_s: float) -> FittedTime:
    off = fitted_s / measured_s - 1
    return FittedTime(what=what, measured_s=measured_s, fitted_s=fitted_s, off=off)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _one_line(text: str) -> str:
    return json.dumps(text)[1:-1]
