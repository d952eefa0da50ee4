"""Threads that put, replace, delete and read objects while the pool is hurt, and check every byte they get."""

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Sequence

from daemons.client.objects.store import Store
from daemons.core.errors import Conflict, McError
from daemons.transfer import TransferEngine
from soak.model import NameModel, value_of

_SIZES = (24, 100, 4096, 70_000, 1_500_000)
_TIMEOUT_S = 3.0
_BATCH = 6


class Client(threading.Thread):
    """Writes its own names, and reads those of all. `violations` is what must stay empty."""

    def __init__(
        self,
        master: str,
        seed: int,
        own: Sequence[NameModel],
        everything: Sequence[NameModel],
        *,
        is_far: bool = False,
    ) -> None:
        """`is_far`: all it reads comes over TCP, as from another host."""
        super().__init__(name=f"soak-client-{seed}", daemon=True)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.ends = threading.Event()
        self._master = master
        self._is_far = is_far
        self._random = random.Random(seed)  # repeatable, not secret
        self._own = list(own)
        self._everything = everything

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            engine = TransferEngine(transports=("tcp",)) if self._is_far else None
            if engine is not None:
                stack.enter_context(engine)
            store = stack.enter_context(
                Store(
                    self._master,
                    namespace="soak",
                    timeout_s=_TIMEOUT_S,
                    num_threads=1,
                    engine=engine,
                )
            )
            while not self.ends.is_set():
                try:
                    self._step(store)
                except AssertionError as error:
                    self.violations.append(str(error))
                except McError as error:
                    self.counts[f"error {error.code}"] += 1

    def _step(self, store: Store) -> None:
        kinds, weights = (self._read, self._read_many, self._write, self._write_many), (8, 3, 7, 2)
        self._random.choices(kinds, weights)[0](store)

    def _write(self, store: Store) -> None:
        model = self._random.choice(self._own)
        verb = self._random.choices(("put", "replace", "delete"), (3, 4, 2))[0]
        name, length = name_of(model), self._random.choice(_SIZES)
        if verb == "put" and model.must_exist:
            self._put_over(store, model, length)
            return
        attempt = model.begin()
        if verb == "delete":
            store.delete(name)
        else:
            store.replace(name, value_of(model.number, attempt, length))
        model.acknowledged(attempt, is_deleted=verb == "delete")
        self.counts[verb] += 1

    def _put_over(self, store: Store, model: NameModel, length: int) -> None:
        """Other bytes under a name that is there: never stored, or the name had been lost and is new."""
        attempt = model.begin()
        try:
            store.put(name_of(model), value_of(model.number, attempt, length))
        except Conflict:
            model.refused()
            self.counts["conflict"] += 1
        else:
            model.acknowledged(attempt, is_deleted=False)
            self.counts["put over a lost one"] += 1

    def _write_many(self, store: Store) -> None:
        """Each has an outcome of its own."""
        models = self._random.sample(self._own, _BATCH)
        lengths = [self._random.choice(_SIZES) for _ in models]
        tries = [(model, model.begin()) for model in models]
        values = [
            (name_of(model), value_of(model.number, attempt, length))
            for (model, attempt), length in zip(tries, lengths, strict=True)
        ]
        for (model, attempt), result in zip(tries, store.replace_many(values), strict=True):
            if isinstance(result, int):
                model.acknowledged(attempt, is_deleted=False)
                self.counts["replace of many"] += 1
            else:
                self.counts[f"error {result.code}"] += 1

    def _read_many(self, store: Store) -> None:
        models = self._random.sample(self._everything, _BATCH)
        lasts = [model.last(is_own=model in self._own) for model in models]
        values = store.get_many([name_of(model) for model in models])
        for model, last, value in zip(models, lasts, values, strict=True):
            if isinstance(value, bytes):
                model.check(value, last)
            kind = "read of many" if isinstance(value, bytes) else "miss"
            self.counts[f"error {value.code}" if isinstance(value, McError) else kind] += 1

    def _read(self, store: Store) -> None:
        model = self._random.choice(self._everything)
        last = model.last(is_own=model in self._own)
        value = store.get(name_of(model))
        if value is None:
            self.counts["miss"] += 1
            return
        model.check(value, last)
        self.counts["read"] += 1


def name_of(model: NameModel) -> bytes:
    return b"name-%d" % model.number
