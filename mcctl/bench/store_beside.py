"""`mcctl bench store --beside PYTHON`: the same measures of the published store, in turns with ours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import numpy as np

from daemons.client.objects.store import Store
from daemons.core.errors import McError
from daemons.core.units import KIB, MIB
from daemons.transfer import TransferEngine
from mcctl.bench.patience import PATIENCE_S
from mcctl.bench.published_store import PublishedStore
from mcctl.bench.store_timing import Progress, timed

NAMESPACE: Final = "mcctl bench store beside"
_SMALL: Final = 4 * KIB
_SMALL_CALLS: Final = 20
"""Of either store, before it is the other's turn."""
_SIZES: Final = (32, 128)
_NAMES: Final = 1000
_WARM_ROUNDS: Final = 2


class StoreBesideRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of both. `ratio` above 1: ours is better."""

    what: str
    ours: float
    published: float
    unit: str
    ratio: float
    way: str
    """How our bytes went; the published store's go over TCP."""


@dataclass(frozen=True, slots=True)
class _Measure:
    """`ours` makes so many calls and gives the seconds of each, as the published store does for `published`."""

    what: str
    way: str
    published: str
    count: int
    ours: Callable[[int], list[float]]
    per_call: float = 0.0
    """Gigabytes or millions of names; 0: the time itself is told."""

    def row(self, ours_s: float, published_s: float) -> StoreBesideRow:
        unit = "us" if not self.per_call else "M names/s" if "names" in self.what else "GB/s"
        return StoreBesideRow(
            what=self.what,
            ours=self._value(ours_s),
            published=self._value(published_s),
            unit=unit,
            ratio=published_s / ours_s,
            way=self.way,
        )

    def _value(self, seconds: float) -> float:
        return self.per_call / seconds if self.per_call else seconds * 1e6


def run(master: str, python: Path, rounds: int, progress: Progress) -> list[StoreBesideRow]:
    """Raises ConfigError where that Python has no published store."""
    progress("starting the published store")
    with (
        PublishedStore(python) as published,
        Store(master, namespace=NAMESPACE, timeout_s=PATIENCE_S, num_threads=1) as store,
        TransferEngine(transports=("tcp",)) as engine,
        # As many threads as it takes by default: so does the published client, and the nodes have one for each.
        Store(master, namespace=NAMESPACE, timeout_s=PATIENCE_S, engine=engine) as far,
    ):
        try:
            return [_compare(each, published, rounds, progress) for each in _measures(store, far)]
        finally:
            store.delete_many([each.name for each in store.list()])


def _measures(store: Store, far: Store) -> list[_Measure]:
    source = np.random.default_rng(2).integers(0, 256, (max(_SIZES), MIB), np.uint8)
    large = [f"large-{number}" for number in range(len(source))]
    store.register(source)
    _whole(store.put_many(list(zip(large, source, strict=True)), timeout_s=PATIENCE_S))
    names = [b"name-%d" % number for number in range(_NAMES)]
    _whole(store.put_many([(name, b"x") for name in names], timeout_s=PATIENCE_S))
    target = np.zeros_like(source)
    small = _Small(store)

    def batch(reader: Store, size: int) -> Callable[[int], list[float]]:
        wanted = list(zip(large[:size], target[:size], strict=True))
        return lambda count: [timed(lambda: reader.get_into_many(wanted)) for _ in range(count)]

    batches = [
        _Measure(
            f"get {size} x 1 MiB", way, f"batch{size}", 1, batch(reader, size), size * MIB / 1e9
        )
        for way, reader in (("shared memory", store), ("tcp", far))
        for size in _SIZES
    ]
    return [
        _Measure("put 4 KiB under a name, p50", "shared memory", "put", _SMALL_CALLS, small.put),
        _Measure("get 4 KiB, p50", "shared memory", "get", _SMALL_CALLS, small.get),
        *batches,
        _Measure(
            "exists, 1000 names a call",
            "",
            "exists",
            5,
            lambda count: [timed(lambda: store.exists_many(names)) for _ in range(count)],
            _NAMES / 1e6,
        ),
    ]


class _Small:
    """Values of 4 KiB, each under a name of its own; what is got is what was put last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._value = np.random.default_rng(1).bytes(_SMALL)
        self._number = 0

    def put(self, count: int) -> list[float]:
        first, self._number = self._number, self._number + count
        return [
            timed(lambda i=i: self._store.put(f"small-{first + i}", self._value))  # type: ignore[misc]
            for i in range(count)
        ]

    def get(self, count: int) -> list[float]:
        first = self._number - count
        return [timed(lambda i=i: self._store.get(f"small-{first + i}")) for i in range(count)]  # type: ignore[misc]


def _compare(
    measure: _Measure, published: PublishedStore, rounds: int, progress: Progress
) -> StoreBesideRow:
    progress(f"{measure.what} {measure.way}")
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds + _WARM_ROUNDS):
        mine, other = (
            measure.ours(measure.count),
            published.measure(measure.published, measure.count),
        )
        if number >= _WARM_ROUNDS:
            ours += mine
            theirs += other
    return measure.row(median(ours), median(theirs))


def _whole(results: Sequence[int | McError]) -> None:
    failed = [result for result in results if isinstance(result, McError)]
    if failed:
        raise failed[0]
