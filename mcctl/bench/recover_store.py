"""Named objects of a local cluster while what holds them fails: a dead node, a stopped one, a master begun anew."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from daemons.client.objects.store import Store
from daemons.core.errors import McError, Unavailable
from daemons.core.ids import new_epoch
from daemons.transfer import TransferEngine
from mcctl.bench.patience import PATIENCE_S

Progress = Callable[[str], object]

KNOWN_GOAL_S: Final = 0.1
STOPPED_GOAL_S: Final = 0.25
MASTER_GOAL_S: Final = 10.0
NAMESPACE: Final = "mcctl bench recover"
_ALONE: Final = 24
"""Objects on one node each."""
_TWICE: Final = 8
_BATCH: Final = 2000
_SAMPLE: Final = 997
_KNOWN_S: Final = 20.0
_POLL_S: Final = 0.001


class Hurtable(Protocol):
    """A cluster whose daemons may be hurt: a LocalCluster. Its cache nodes are called mc- and their node's name."""

    @property
    def master(self) -> str: ...

    def kill(self, name: str, signum: int = signal.SIGKILL) -> None: ...

    def restart(self, name: str) -> None: ...

    def wait_ready(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Found:
    """A figure beside its goal."""

    what: str
    value_s: float | None
    goal_s: float
    detail: str


def nodes_that_fail(cluster: Hurtable) -> list[Found]:
    """Reads over tcp: shared memory of a stopped process can be read as ever."""
    with _store(cluster) as store:
        alone = [(f"alone-{number}", b"alone" * 1000) for number in range(_ALONE)]
        twice = [(f"twice-{number}", b"twice" * 1000) for number in range(_TWICE)]
        _put(store, alone, replicas=1, min_sealed=1)
        _put(store, twice, replicas=2, min_sealed=2)
        # In this order: the master trusts a node that was just found to live for a while, whatever readers say.
        found = [*_killed(cluster, store, [n for n, _ in alone]), _stopped(cluster, store, twice)]
        store.delete_many([name for name, _ in [*alone, *twice]])
    return found


def _stopped(cluster: Hurtable, store: Store, values: Sequence[tuple[str, bytes]]) -> Found:
    holder = _holders(store, values[0][0])[0]
    cluster.kill(f"mc-{holder}", signal.SIGSTOP)
    try:
        times, wrong = [], 0
        for name, value in values:
            began_s = time.monotonic()
            wrong += store.get(name) != value
            times.append(time.monotonic() - began_s)
    finally:
        cluster.kill(f"mc-{holder}", signal.SIGCONT)
    cluster.wait_ready()
    if wrong:
        raise Unavailable(f"{wrong} of {len(values)} objects with two replicas were not read")
    others_s = sorted(times)[-2]
    said = f"mc-{holder} stopped, {len(times)} gets; the slowest but one took {others_s:.3f} s"
    return Found("a stopped node with a replica: one get", max(times), STOPPED_GOAL_S, said)


def _killed(cluster: Hurtable, store: Store, names: Sequence[str]) -> list[Found]:
    """From the first failed touch on, which here is the end of a get."""
    holder = _holders(store, names[0])[0]
    first, *others = [name for name in names if _holders(store, name) == (holder,)]
    store.get_many(others)  # known places are tried first
    cluster.kill(f"mc-{holder}")
    touched_s = _get_fails(store, first)
    failed_s = time.monotonic()
    exists_s = _until(lambda: store.exists(others[0]) == "unreachable", failed_s)
    slowest_s = max(_get_fails(store, name) for name in others)
    cluster.restart(f"mc-{holder}")
    cluster.wait_ready()
    is_back_s = _until(lambda: store.exists(first) == "present", time.monotonic(), PATIENCE_S)
    if is_back_s is None:
        raise Unavailable(f"{first} is not back though mc-{holder} is")
    return [
        Found(
            "a dead node: until exists knows",
            exists_s,
            KNOWN_GOAL_S,
            f"the get that touched it ended after {touched_s:.3f} s",
        ),
        Found(
            "a dead node: the next gets of what it held",
            slowest_s,
            KNOWN_GOAL_S,
            f"the slowest of {len(others)}, each a clear error",
        ),
    ]


def master_restart(cluster: Hurtable, num_objects: int, progress: Progress) -> Found:
    """Small named objects, one replica each; all are asked for by name, some are read."""
    names = [f"o-{number}" for number in range(num_objects)]
    with _store(cluster) as store:
        began_s = time.monotonic()
        for start in range(0, num_objects, _BATCH):
            part = names[start : start + _BATCH]
            _put(store, [(name, name.encode()) for name in part], replicas=1, min_sealed=1)
            progress(f"{start + len(part)} of {num_objects} objects put")
        put_s = time.monotonic() - began_s
        progress("mc-master dies, and is started again")
        cluster.kill("mc-master")
        killed_s = time.monotonic()
        cluster.restart("mc-master")
        took_s = _until(lambda: _all_present(store, names), killed_s, PATIENCE_S)
        sample = names[::_SAMPLE]
        wrong = sum(
            got != name.encode()
            for name, got in zip(sample, store.get_many(sample, timeout_s=PATIENCE_S), strict=True)
        )
        if wrong:
            raise Unavailable(f"{wrong} of {len(sample)} objects were not read after the restart")
        for start in range(0, num_objects, _BATCH):
            store.delete_many(names[start : start + _BATCH])
    what = f"mc-master killed and started again: until all {num_objects} objects are served"
    said = f"put at {num_objects / put_s:,.0f}/s; {len(sample)} of them read"
    return Found(what, took_s, MASTER_GOAL_S, said)


@contextmanager
def _store(cluster: Hurtable) -> Iterator[Store]:
    engine = TransferEngine(epoch=new_epoch(), transports=("tcp",))
    try:
        with Store(cluster.master, namespace=NAMESPACE, engine=engine, timeout_s=20.0) as store:
            yield store
    finally:
        engine.close()


def _put(
    store: Store, values: Sequence[tuple[str, bytes]], *, replicas: int, min_sealed: int
) -> None:
    results = store.put_many(values, replicas=replicas, min_sealed=min_sealed, timeout_s=PATIENCE_S)
    for result in results:
        if isinstance(result, McError):
            raise result


def _holders(store: Store, name: str) -> tuple[str, ...]:
    stat = store.stat(name)
    return () if stat is None else stat.nodes


def _get_fails(store: Store, name: str) -> float:
    """Seconds; an object whose only holder is dead is no miss and no value."""
    began_s = time.monotonic()
    try:
        got = store.get(name)
    except McError:
        return time.monotonic() - began_s
    raise Unavailable(f"{name}: {'a miss' if got is None else 'a value'} though its node is dead")


def _all_present(store: Store, names: Sequence[str]) -> bool:
    try:
        return all(state == "present" for state in store.exists_many(names))
    except McError:
        return False


def _until(is_so: Callable[[], bool], since_s: float, timeout_s: float = _KNOWN_S) -> float | None:
    """Seconds since `since_s`; None where it does not come to pass."""
    while time.monotonic() - since_s < timeout_s:
        if is_so():
            return time.monotonic() - since_s
        time.sleep(_POLL_S)
    return None
