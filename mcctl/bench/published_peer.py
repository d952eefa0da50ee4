"""One side of the published Mooncake Store, for `mcctl bench store --beside`: run by a Python that has its wheel.

`published_peer.py MASTER segment BYTES` lends memory until stdin ends; `published_peer.py MASTER client` reads what to
measure from stdin, a line of "WHAT COUNT" each, and answers with a line of seconds. Nothing of Mooncake MC is imported.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

_SMALL: Final = 4096
_LARGE: Final = 1 << 20
_BATCH: Final = 128
_NAMES: Final = 1000
_BUFFER_BYTES: Final = 64 << 20


def main() -> int:
    master, role = sys.argv[1:3]
    store = importlib.import_module("mooncake.store").MooncakeDistributedStore()
    segment = int(sys.argv[3]) if role == "segment" else 0
    buffer = _BUFFER_BYTES if role == "segment" else 4 * _BUFFER_BYTES
    status = store.setup("127.0.0.1", "P2PHANDSHAKE", segment, buffer, "tcp", "", master)
    if status:
        sys.stderr.write(f"the published store's setup answers {status}\n")
        return 1
    _say("ready")
    if role == "segment":
        sys.stdin.read()
    else:
        _serve(_Client(store))
    return 0


class _Client:
    """Its measures; each gives the seconds of every call."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._number = 0
        rng = np.random.default_rng(1)
        self._source = rng.integers(0, 256, (_BATCH, _LARGE), np.uint8)
        self._target = np.zeros_like(self._source)
        for array in (self._source, self._target):
            _check(store.register_buffer(array.ctypes.data, array.nbytes), 0)
        self._names = [f"name-{number}" for number in range(_NAMES)]
        self._large = [f"large-{number}" for number in range(_BATCH)]
        for index, name in enumerate(self._names):
            at = self._source[index % _BATCH].ctypes.data
            _check(store.put_from(name, at, 1), 0)
        for index, name in enumerate(self._large):
            _check(store.put_from(name, self._source[index].ctypes.data, _LARGE), 0)

    def put(self, count: int) -> list[float]:
        value = self._source[0, :_SMALL].tobytes()
        first, self._number = self._number, self._number + count
        return _timed(count, lambda i: _check(self._store.put(f"small-{first + i}", value), 0))

    def get(self, count: int) -> list[float]:
        """Of what was put last."""
        first = self._number - count
        return _timed(count, lambda i: len(self._store.get(f"small-{first + i}")))

    def exists(self, count: int) -> list[float]:
        return _timed(count, lambda _: self._store.batch_is_exist(self._names))

    def batch32(self, count: int) -> list[float]:
        return self._batch(count, 32)

    def batch128(self, count: int) -> list[float]:
        return self._batch(count, 128)

    def _batch(self, count: int, size: int) -> list[float]:
        names = self._large[:size]
        targets = [int(row.ctypes.data) for row in self._target[:size]]
        sizes = [_LARGE] * size
        seconds = _timed(count, lambda _: self._store.batch_get_into(names, targets, sizes))
        if not np.array_equal(self._source[:size], self._target[:size]):
            raise RuntimeError("the published store gave other bytes")
        return seconds


def _serve(client: _Client) -> None:
    _say("filled")
    for line in sys.stdin:
        what, count = line.split()
        _say(json.dumps(getattr(client, what)(int(count))))


def _timed(count: int, work: Callable[[int], object]) -> list[float]:
    seconds = []
    for index in range(count):
        started_s = time.perf_counter()
        work(index)
        seconds.append(time.perf_counter() - started_s)
    return seconds


def _check(status: int, wanted: int) -> None:
    if status != wanted:
        raise RuntimeError(f"the published store answers {status}")


def _say(text: str) -> None:
    sys.stdout.write(f"= {text}\n")  # its library writes to stdout too
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
