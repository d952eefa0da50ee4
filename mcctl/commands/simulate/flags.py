"""The flags that verbs of `mcctl simulate` share: traffic, nodes, memory, objectives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from daemons.simulation.pool import EVICTION_NAMES
from daemons.simulation.workloads import WORKLOADS
from mcctl.durations import duration

MADE_UP_REQUESTS: Final = 2000
MAX_NODES: Final = 4096
"""Each request looks at every node."""

TraceArgument = Annotated[
    str, typer.Argument(help=f"A JSONL trace, or made-up traffic: {', '.join(WORKLOADS)}.")
]
Hardware = Annotated[str, typer.Option(help="A profile's name or TOML file.", metavar="NAME")]
Rate = Annotated[
    float,
    typer.Option(
        min=0.001, help="A trace: so many times as fast; made-up traffic: requests a second."
    ),
]
Limit = Annotated[int, typer.Option(min=1, help="At most so many requests.")]
Seed = Annotated[int, typer.Option(help="Of made-up traffic and of the random policy.")]
Prefills = Annotated[int, typer.Option("--prefill", min=1, max=MAX_NODES, help="Prefill nodes.")]
Decodes = Annotated[int, typer.Option("--decode", min=1, max=MAX_NODES, help="Decode nodes.")]
DramTokens = Annotated[
    int, typer.Option(min=0, help="KV each prefill node keeps in DRAM; 0: the profile's.")
]
DeviceTokens = Annotated[
    int,
    typer.Option(
        min=0, help="KV each prefill node keeps in its devices once a prompt is done; 0: none."
    ),
]
SsdTokens = Annotated[
    int, typer.Option(min=0, help="KV each prefill node keeps on an SSD below its DRAM; 0: none.")
]
ObjectTokens = Annotated[
    int, typer.Option(min=0, help="KV that one object store for all nodes keeps; 0: none.")
]
Evictions = Annotated[
    list[str] | None,
    typer.Option(
        help=f"{', '.join(EVICTION_NAMES)}, or all; may be repeated; lru otherwise.",
        autocompletion=lambda: [*EVICTION_NAMES, "all"],
    ),
]
Plot = Annotated[Path | None, typer.Option(help="Also draw it: .svg, or .png.", metavar="FILE")]
TtftSlo = Annotated[float, duration(least_s=0.001, help="Objective, to the first token.")]
TbtSlo = Annotated[float, duration(least_s=0.0001, help="Objective, between tokens.")]


def chosen(names: Sequence[str] | None, known: Sequence[str], default: str) -> Sequence[str]:
    wanted = names or [default]
    unknown = [name for name in wanted if name not in (*known, "all")]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(known)}, all")
    return known if "all" in wanted else wanted
