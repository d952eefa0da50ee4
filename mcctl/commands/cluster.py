"""mcctl cluster: one cluster of real processes on this host's loopback, kept until it is told to end."""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from daemons.config.key_files import write_whole
from daemons.config.tenants import TenantFile, tenants_text
from daemons.core.errors import Conflict, Unavailable
from daemons.core.file_lock import FileLock, Refusal
from daemons.simulation.hardware import find_profile, profile_names
from mcctl import exit_codes, model_store, paths, render
from mcctl.cluster.plan import ClusterOptions
from mcctl.cluster.processes import READY_TIMEOUT_S, LocalCluster
from mcctl.cluster.record import (
    end_cluster,
    find_daemons,
    persistent_directory,
    read_record,
    running_record,
    sweep,
)
from mcctl.cluster.restarting import Restart
from mcctl.commands import check_engine_dtype, check_size, new_app
from mcctl.durations import duration
from mcctl.file_system import file_system
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.views.cluster import ClusterStatus, show_cluster
from mcctl.watching import watchable

app = new_app()

_NONE = "no local cluster; start one with `mcctl cluster up`"


class DownResult(msgspec.Struct, frozen=True, kw_only=True):
    """`killed` did not end within their time; `kept` is the --segment-directory, whose files are still there."""

    was_running: bool
    killed: list[str]
    kept: str | None = None


@app.command()
@prints(ClusterStatus)
def up(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A directory or a name.")] = model_store.DEFAULT_MODEL,
    prefill: Annotated[int, typer.Option(min=1, max=64, help="Prefill instances.")] = 1,
    decode: Annotated[int, typer.Option(min=1, max=64, help="Decode instances.")] = 1,
    cachenodes: Annotated[int, typer.Option(min=1, max=64, help="Cache nodes.")] = 1,
    replicas: Annotated[
        int, typer.Option(min=1, max=8, help="Of each block, on so many cache nodes.")
    ] = 1,
    dtype: Annotated[
        str,
        typer.Option(
            help="bfloat16, float32, or auto: what is fast here.", callback=check_engine_dtype
        ),
    ] = "auto",
    kv_memory: Annotated[
        str, typer.Option(help="KV arena of each instance.", callback=check_size)
    ] = "1GiB",
    segment: Annotated[
        str, typer.Option(help="Pool memory of each cache node.", callback=check_size)
    ] = "1GiB",
    segment_directory: Annotated[
        Path | None,
        typer.Option(
            help="On a tmpfs: keep pool memory there for the next cluster.", resolve_path=True
        ),
    ] = None,
    ssd_directory: Annotated[
        Path | None,
        typer.Option(
            help="Give the pool an SSD tier there; it is kept for the next cluster.",
            resolve_path=True,
        ),
    ] = None,
    ssd_capacity: Annotated[
        str, typer.Option(help="Of each cache node's SSD tier.", callback=check_size)
    ] = "8GiB",
    object_bucket: Annotated[
        str, typer.Option(help="Give the pool a tier in this bucket; it is kept.")
    ] = "",
    object_endpoint: Annotated[
        str, typer.Option(help="Of the store, such as http://127.0.0.1:9000; default: AWS.")
    ] = "",
    object_credentials: Annotated[
        Path | None,
        typer.Option(help="As ~/.aws/credentials; default: the environment's.", resolve_path=True),
    ] = None,
    paced: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="Rehearse: instances take the times of this hardware profile, and compute nothing.",
        ),
    ] = None,
    ttft_slo: Annotated[
        float,
        duration(help="Reject who would wait longer for the first token."),
    ] = 0.0,
    tbt_slo: Annotated[float, duration(help="Reject who would wait longer between tokens.")] = 0.0,
    tenants: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Let in only the tenants of this file, see `mcctl tenant`; made if it is missing.",
            resolve_path=True,
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The gateway's; a free one otherwise.")
    ] = None,
) -> None:
    """Start a cluster and wait until it serves. Other verbs then use it by default.

    \b
    Example: mcctl cluster up --prefill 2 --decode 2 --port 8000
    Example: mcctl cluster up --paced a800x8-llama-70b --ttft-slo 10 --tbt-slo 0.1
    """
    if replicas > cachenodes:
        raise typer.BadParameter(f"--replicas {replicas}: there are {cachenodes} --cachenodes")
    options = ClusterOptions(
        model=model_store.find_model(model),
        num_prefill=prefill,
        num_decode=decode,
        num_cachenodes=cachenodes,
        replicas=replicas,
        dtype=dtype,
        kv_memory=kv_memory,
        segment=segment,
        segment_directory=segment_directory,
        ssd_directory=ssd_directory,
        ssd_capacity=ssd_capacity,
        object_bucket=object_bucket,
        object_endpoint=object_endpoint,
        object_credentials=object_credentials,
        http_port=port,
        paced=None if paced is None else _profile(paced),
        ttft_slo_s=ttft_slo,
        tbt_slo_s=tbt_slo,
        tenants=tenants,
    )
    if tenants is not None and not tenants.exists():
        write_whole(tenants, tenants_text(TenantFile()), mode=0o644)
    with _hold_lock():
        if segment_directory is not None:
            found = file_system(segment_directory)
            if found is not None and not found.is_memory:
                render.complain(
                    f"{segment_directory} is on {found.kind}: on a tmpfs the pool would be faster"
                )
        with render.progress("starting") as progress:
            cluster = LocalCluster.persistent(options)
            started_s = time.monotonic()
            cluster.start(progress)
            progress(f"ready after {time.monotonic() - started_s:.1f} s")
    show_cluster(settings_of(context).output, cluster.record)


@app.command()
@prints(DownResult)
def down(
    context: typer.Context,
    grace: Annotated[
        float, duration(help="How long each group of daemons may drain before SIGKILL.")
    ] = 5.0,
) -> None:
    """End the cluster and remove what it made. Files of --segment-directory, --ssd-directory stay. Fine when none runs.

    \b
    Example: mcctl cluster down
    """
    with _hold_lock():
        sweep()
        record = read_record(persistent_directory())
        was_running = record is not None and record.is_running
        killed = []
        kept = record.segment_directory if record is not None else None
        if record is not None:
            with render.progress("stopping"):
                killed = end_cluster(record, grace_s=grace)
    if settings_of(context).output == "json":
        render.emit_json(DownResult(was_running=was_running, killed=killed, kept=kept))
    else:
        forced = f" (killed: {', '.join(killed)})" if killed else ""
        render.emit_line(f"cluster ended{forced}" if was_running else "no cluster was running")
        if kept is not None:
            render.note(
                f"its blocks stay in {kept} for the next one; remove the files there to free their room"
            )


@app.command()
@prints(ClusterStatus)
@watchable
def status(context: typer.Context) -> int:
    """The cluster of `mcctl cluster up`: processes, memory, logs. Exits with 7 when it does not serve, or a daemon has
    ended, and says what to do.

    \b
    Example: mcctl cluster status --output json
    """
    record = read_record(persistent_directory())
    if record is None:
        if settings_of(context).output != "json":
            raise Unavailable(_NONE)
        render.emit_json(ClusterStatus(is_running=False, is_healthy=False))
        return exit_codes.BY_FAMILY["unavailable"]
    return show_cluster(settings_of(context).output, record)


@app.command()
@prints(ClusterStatus)
def restart(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DAEMON]...",
            help="cachenode, decode-2, or prefill for all; default: those that have ended.",
        ),
    ] = None,
    grace: Annotated[float, duration(help="How long a daemon may drain before SIGKILL.")] = 5.0,
) -> int:
    """Start daemons of the cluster again, and wait for them.

    Those that live are ended first; the others go on.

    \b
    Example: mcctl cluster restart decode
    """
    with _hold_lock():
        record = running_record()
        if record is None:
            raise Unavailable(_NONE)
        chosen = [d.name for d in find_daemons(record, names)] if names else record.ended
        if not chosen:
            render.note("no daemon has ended; name those to restart")
            return show_cluster(settings_of(context).output, record)
        work = Restart(record, chosen)
        with render.progress("restarting") as progress:
            work.run(progress, grace_s=grace, timeout_s=READY_TIMEOUT_S)
    return show_cluster(settings_of(context).output, work.record)


def _profile(name: str) -> str:
    """Daemons run elsewhere: a file by its whole path. Raises ConfigError for one that is none."""
    find_profile(name)
    return name if name in profile_names() else str(Path(name).resolve())


def _hold_lock() -> FileLock:
    """Keeps another `mcctl cluster` out; raises Conflict when one is at work."""
    paths.state_dir().mkdir(parents=True, exist_ok=True)
    refusal = Refusal(error=Conflict, what="the local cluster", next_step="wait for it")
    return FileLock(paths.state_dir() / "cluster.lock", refusal)
