"""mcctl simulate compare: every policy on the same traffic, beside ours."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from daemons.core.errors import McError
from daemons.simulation.comparison import PolicyRow, compare_policies, traffics
from daemons.simulation.disaggregated import ADMISSION_NAMES, DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, find_profile
from daemons.simulation.outcome import Objectives
from daemons.simulation.trace import read_trace
from mcctl import render
from mcctl.commands.simulate.flags import (
    MADE_UP_REQUESTS,
    Decodes,
    Hardware,
    Limit,
    Prefills,
    TbtSlo,
    TtftSlo,
)
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.views.simulation import POLICY_COLUMNS


@prints({"rows": list[PolicyRow]})
def compare(
    context: typer.Context,
    trace: Annotated[
        Path | None, typer.Argument(help="A JSONL trace, as it came and twice as fast.")
    ] = None,
    prefill: Prefills = 8,
    decode: Decodes = 8,
    hardware: Hardware = DEFAULT,
    limit: Limit = 1_000_000,
    requests: Annotated[
        int, typer.Option(min=10, max=100_000, help="Of each kind of made-up traffic.")
    ] = MADE_UP_REQUESTS,
    admission: Annotated[
        str, typer.Option(help=f"Of all policies: {', '.join(ADMISSION_NAMES)}.")
    ] = "objectives",
    ttft_slo: TtftSlo = 30.0,
    tbt_slo: TbtSlo = 0.1,
) -> None:
    """Every policy on the same traffic, beside ours. Exits with 1 where ours does not keep its goals.

    \b
    Example: mcctl simulate compare conversation_trace.jsonl
    """
    if admission not in ADMISSION_NAMES:
        raise typer.BadParameter(f"{admission} is none of {', '.join(ADMISSION_NAMES)}")
    profile, objectives = find_profile(hardware), Objectives(ttft_slo, tbt_slo)
    asked = [] if trace is None else read_trace(trace, limit=limit)
    plan = DisaggregatedPlan(
        prefill, decode, admission=admission, ttft_slo_s=ttft_slo, tbt_slo_s=tbt_slo
    )
    rows: list[PolicyRow] = []
    with render.progress("replaying") as progress:
        for traffic in traffics(asked, requests, prefill, profile):
            rows += compare_policies(
                traffic, lambda policy: replace(plan, policy=policy), profile, objectives, progress
            )
    output = settings_of(context).output
    text = "every policy, with the same admission; on a trace ours has more goodput or the shorter mean TTFT"
    render.emit(output, {"rows": rows}, POLICY_COLUMNS, rows, title=text)
    missed = sum(not row.is_goal_met for row in rows)
    if missed:
        raise McError(f"{missed} of {len(rows)} policies are better somewhere than ours may be")
