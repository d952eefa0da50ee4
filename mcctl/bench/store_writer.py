"""One writer of `mcctl bench store`: puts for a while and says how many bytes; or moves the same bytes as memcpy would.

`python -m mcctl.bench.store_writer put MASTER NAME SECONDS`, or `... copy - - SECONDS`, begins at a line on stdin.
"""

import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from daemons.client.objects.store import Store
from daemons.core.errors import McError
from daemons.core.units import MIB
from mcctl.bench.patience import PATIENCE_S

Rows = NDArray[np.uint8]
VALUE_BYTES: Final = MIB
_NUM_VALUES: Final = 8


def main() -> None:
    try:
        _write()
    except McError as error:
        sys.exit(f"error: a writer of the benchmark: {error.message}")


def _write() -> None:
    kind, master, name, seconds = sys.argv[1:]
    values = np.zeros((_NUM_VALUES, VALUE_BYTES), np.uint8)
    if kind == "copy":
        target = np.zeros_like(values)
        _run(lambda number: _copy(values, target, number), float(seconds))
        return
    with Store(master, namespace="mcctl bench store", timeout_s=PATIENCE_S) as store:
        store.register(values)
        for number in range(_NUM_VALUES):
            store.replace(f"{name}-{number}", values[number])
        _run(
            lambda number: store.replace(
                f"{name}-{number % _NUM_VALUES}", values[number % _NUM_VALUES]
            ),
            float(seconds),
        )
        store.delete_many([f"{name}-{number}" for number in range(_NUM_VALUES)])


def _copy(values: Rows, target: Rows, number: int) -> None:
    """What a node does with a value at least: copy it, hash it."""
    row = number % _NUM_VALUES
    np.copyto(target[row], values[row])
    xxhash.xxh3_64_intdigest(target[row].data)


def _run(work: Callable[[int], object], seconds: float) -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    started_s = time.perf_counter()
    done = 0
    for number in count():
        if time.perf_counter() - started_s >= seconds:
            break
        work(number)
        done += 1
    took_s = time.perf_counter() - started_s
    sys.stdout.write(f"{done * VALUE_BYTES / took_s}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
