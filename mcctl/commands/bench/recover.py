"""mcctl bench recover: what the death of each daemon costs the others."""

import os
from typing import Annotated

import typer

from daemons.core.units import MIB
from mcctl import model_store, render
from mcctl.bench import recover as recover_bench
from mcctl.bench.recover_streams import CrowdPlan
from mcctl.bench.served_model import described_model, vocabulary_of
from mcctl.cluster.plan import ClusterOptions
from mcctl.cluster.processes import LocalCluster
from mcctl.output_schema import prints
from mcctl.settings import settings_of

_NUM_CACHENODES = 3
_OBJECT_BYTES = 4096
"""Of a segment, for the smallest object."""


@prints(recover_bench.RecoverResult)
def recover(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A directory or a name.")] = model_store.DEFAULT_MODEL,
    profile: Annotated[
        str,
        typer.Option(help="Instances take the times of this hardware; an empty one: they compute."),
    ] = "a800x8-llama-70b",
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Kill only these: {', '.join(recover_bench.VICTIMS)}."),
    ] = None,
    objects: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="So many are there when the master dies.")
    ] = 20_000,
    tokens: Annotated[
        int, typer.Option(min=10, max=1000, help="Of each answer that streams meanwhile.")
    ] = 150,
) -> None:
    """What the death of each daemon costs the others. Kills them in turn, under traffic, each figure beside its goal.

    Starts a cluster of its own: two prefill and two decode nodes, three cache nodes, a gateway and a master.

    \b
    Example: mcctl bench recover
    Example: mcctl bench recover --only master --objects 1000000 --output json
    """
    settings = settings_of(context)
    victims = [role for role in recover_bench.VICTIMS if not only or role in only]
    unknown = set(only or ()) - set(recover_bench.VICTIMS)
    if unknown:
        raise typer.BadParameter(
            f"no daemon {', '.join(sorted(unknown))}; there are {', '.join(recover_bench.VICTIMS)}"
        )
    with render.progress("starting a cluster") as progress:
        path = (
            model_store.fetch(model, progress)
            if model in model_store.CATALOG
            else model_store.find_model(model)
        )
        options = ClusterOptions(
            model=path,
            num_prefill=2,
            num_decode=2,
            num_cachenodes=_NUM_CACHENODES,
            replicas=2,
            kv_memory="256MiB",
            segment=f"{_segment_mib(objects)}MiB",
            paced=profile or None,
        )
        with LocalCluster.temporary(options) as cluster:
            described = described_model(cluster.master, path.name)
            traffic = CrowdPlan(
                model=path.name,
                vocab_size=vocabulary_of(described),
                answer_tokens=tokens,
            )
            plan = recover_bench.RecoverPlan(
                traffic=traffic,
                victims=victims,
                num_objects=objects if "master" in victims else 0,
            )
            rows = recover_bench.RecoverBench(cluster, plan, progress).run()
    result = recover_bench.RecoverResult(
        model=path.name,
        engine=profile or (described.dtype if described is not None else options.dtype),
        num_objects=plan.num_objects,
        load_1m=os.getloadavg()[0],
        rows=rows,
    )
    render.emit(settings.output, result, recover_bench.COLUMNS, result.rows)


def _segment_mib(num_objects: int) -> int:
    """Half as much again as a fair share of them takes, beside the prompts' blocks."""
    return 256 + num_objects * _OBJECT_BYTES * 3 // (2 * _NUM_CACHENODES * MIB)
