"""`mcctl bench store`: puts and gets of small values, batches of large ones, look-ups, and writers side by side.

Each figure stands beside a limit that was measured in turns with it, so that a busy machine slows both alike.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import msgspec
import numpy as np
import xxhash

from daemons.client.objects.store import Store
from daemons.client.round_trip import bare_round_trips
from daemons.core.errors import Unavailable
from daemons.core.units import KIB, MIB
from mcctl.bench import store_beside
from mcctl.bench.patience import PATIENCE_S
from mcctl.bench.store_beside import StoreBesideRow
from mcctl.bench.store_timing import Progress, timed

NAMESPACE: Final = "mcctl bench store"
_SMALL: Final = 4 * KIB
_BATCH: Final = 128
_NAMES: Final = 1000
_WARM_UP: Final = 30
_WARM_ROUNDS: Final = 3
"""In which the nodes' memory is mapped, page by page."""


class StoreRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measure. `ratio` is its value over the limit's where more is better, else the limit's over its own."""

    what: str
    value: float
    limit: float
    unit: str
    ratio: float
    limit_is: str


class WritersRow(msgspec.Struct, frozen=True, kw_only=True):
    """So many writer processes at once, and what another client's look-ups took meanwhile."""

    writers: int
    gb_s: float
    limit_gb_s: float
    lookup_p99_us: float


class StoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench store --output json` prints; fields are only ever added."""

    rows: list[StoreRow]
    writers: list[WritersRow]
    beside: list[StoreBesideRow] = []
    """With --beside."""


@dataclass(frozen=True, slots=True)
class StorePlan:
    """`rounds` of each measure; each number of `writers` writes for `seconds`."""

    rounds: int
    writers: Sequence[int]
    seconds: float
    beside: Path | None = None
    """A Python that has the published store's wheel."""


def run(master: str, plan: StorePlan, progress: Progress) -> StoreResult:
    with Store(master, namespace=NAMESPACE, timeout_s=PATIENCE_S, num_threads=1) as store:
        try:
            progress("values of 4 KiB")
            rows = _small(store, plan)
            progress("a batch of 128 x 1 MiB")
            rows.append(_batch(store, plan))
            progress("look-ups of 1000 names")
            rows.append(_exists(store, plan))
        finally:
            store.delete_many([each.name for each in store.list()])
    writers = []
    for count in plan.writers:
        progress(f"{count} writers")
        writers.append(_writers(master, count, plan.seconds))
    beside: list[StoreBesideRow] = []
    if plan.beside is not None:
        beside = store_beside.run(master, plan.beside, plan.rounds, progress)
    return StoreResult(rows=rows, writers=writers, beside=beside)


def _small(store: Store, plan: StorePlan) -> list[StoreRow]:
    value = np.random.default_rng(1).bytes(_SMALL)
    names = [f"small-{number}" for number in range(max(100, 20 * plan.rounds))]
    times: dict[str, list[float]] = {"put": [], "get": [], "limit": []}
    with bare_round_trips() as round_trip:
        for index, name in enumerate(names):
            measured = {
                "limit": round_trip(),
                "put": timed(lambda name=name: store.put(name, value)),  # type: ignore[misc]
                "get": timed(lambda name=name: store.get(name)),  # type: ignore[misc]
            }
            if index >= _WARM_UP:
                for key, seconds in measured.items():
                    times[key].append(seconds)
    limit = median(times["limit"])
    return [
        StoreRow(
            what=f"{verb} 4 KiB, p50",
            value=median(times[verb]) * 1e6,
            limit=limit * 1e6,
            unit="us",
            ratio=limit / median(times[verb]),
            limit_is="one bare ZeroMQ round trip",
        )
        for verb in ("put", "get")
    ]


def _batch(store: Store, plan: StorePlan) -> StoreRow:
    """One thread on both sides. The copies go to other memory each, and all of it was touched before."""
    source = np.random.default_rng(2).integers(0, 256, (_BATCH, MIB), np.uint8)
    names = [f"large-{number}" for number in range(_BATCH)]
    results = store.put_many(list(zip(names, source, strict=True)), timeout_s=PATIENCE_S)
    failed = [result for result in results if not isinstance(result, int)]
    if failed:
        raise failed[0]
    target, copied = np.zeros_like(source), np.zeros_like(source)
    wanted = list(zip(names, target, strict=True))

    def copy_and_hash() -> None:
        for index in range(_BATCH):
            np.copyto(copied[index], source[index])
            xxhash.xxh3_64_intdigest(copied[index].data)

    ours, limits = [], []
    for _ in range(plan.rounds + _WARM_ROUNDS):
        limits.append(timed(copy_and_hash))
        ours.append(timed(lambda: store.get_into_many(wanted)))
    if not np.array_equal(target, source):
        raise Unavailable("the batch did not come back whole; is the pool too small for 128 MiB?")
    gb = _BATCH * MIB / 1e9
    return StoreRow(
        what="get 128 x 1 MiB",
        value=gb / median(ours[_WARM_ROUNDS:]),
        limit=gb / median(limits[_WARM_ROUNDS:]),
        unit="GB/s",
        ratio=median(limits[_WARM_ROUNDS:]) / median(ours[_WARM_ROUNDS:]),
        limit_is="a loop of memcpy and xxh3 over the same bytes",
    )


def _exists(store: Store, plan: StorePlan) -> StoreRow:
    names = [b"name-%d" % number for number in range(_NAMES)]
    store.put_many([(name, b"x") for name in names], timeout_s=PATIENCE_S)
    times, limits = [], []
    with bare_round_trips() as round_trip:
        for _ in range(10 * plan.rounds):
            limits.append(round_trip())
            times.append(timed(lambda: store.exists_many(names)))
    return StoreRow(
        what="exists, 1000 names a call",
        value=_NAMES / median(times) / 1e6,
        limit=_NAMES / median(limits) / 1e6,
        unit="M names/s",
        ratio=median(limits) / median(times),
        limit_is="one bare ZeroMQ round trip a call",
    )


def _writers(master: str, count: int, seconds: float) -> WritersRow:
    limit = sum(_run_writers(["copy", "-", "-", f"{seconds / 2}"], count, seconds))
    lookups: list[float] = []
    is_over = threading.Event()

    def look_up() -> None:
        with Store(master, namespace=NAMESPACE, timeout_s=PATIENCE_S) as store:
            while not is_over.is_set():
                lookups.append(timed(lambda: store.exists_many(["w0-0"])))
                time.sleep(0.002)

    thread = threading.Thread(target=look_up)
    thread.start()
    try:
        rates = _run_writers(["put", master, "w{}", f"{seconds}"], count, seconds)
    finally:
        is_over.set()
        thread.join()
    return WritersRow(
        writers=count,
        gb_s=sum(rates) / 1e9,
        limit_gb_s=limit / 1e9,
        lookup_p99_us=quantiles(lookups, n=100)[98] * 1e6 if len(lookups) > 1 else 0.0,
    )


def _run_writers(arguments: list[str], count: int, seconds: float) -> list[float]:
    """Bytes a second of each; they begin together."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "mcctl.bench.store_writer", *[a.format(n) for a in arguments]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(count)
    ]
    try:
        lines = []
        for process in processes:
            assert process.stdout is not None
            lines.append(process.stdout.readline())
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=seconds + PATIENCE_S)[0] for process in processes]
        if any(line != "ready\n" for line in lines) or any(p.returncode for p in processes):
            raise Unavailable("a writer of the benchmark ended; its error is above")
        return [float(text) for text in said]
    except (subprocess.TimeoutExpired, BrokenPipeError):
        raise Unavailable("a writer of the benchmark hangs, or has ended") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
