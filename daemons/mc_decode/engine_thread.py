"""The one thread that makes tokens: continuous batching, sequences join and leave between steps."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemons.core.errors import McError
from daemons.engine.instance import Instance
from daemons.engine.runner import DecodeRow
from daemons.engine.sampler import Sampler, sample_rows
from daemons.mc_decode.request import Request
from daemons.mc_decode.requests import Stepped
from daemons.protocol.request import FinishReason

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Called on the engine thread; they must hand over to the loop."""

    stepped: Callable[[Sequence[Stepped], float], object]
    left: Callable[[Request], object]
    failed: Callable[[Request, McError], object]


@dataclass(slots=True, eq=False)
class _Sequence:
    request: Request
    token: int
    """The last one, not yet fed."""
    position: int
    """Where it stands."""
    num_left: int
    sampler: Sampler
    stop_tokens: frozenset[int]


class EngineThread:
    """`join` and `leave` from the loop. After `leave`, `left` comes once no step works on the slot."""

    def __init__(self, instance: Instance, max_batch: int, callbacks: Callbacks) -> None:
        self._instance = instance
        self._max_batch = max_batch
        self._callbacks = callbacks
        self._joining: list[Request] = []
        self._leaving: list[Request] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._active: deque[_Sequence] = deque()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def join(self, request: Request) -> None:
        with self._changed:
            self._joining.append(request)
            self._changed.notify()

    def leave(self, request: Request) -> None:
        with self._changed:
            self._leaving.append(request)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while self._admit():
            batch = [self._active.popleft() for _ in range(min(self._max_batch, len(self._active)))]
            try:
                self._active.extend(self._step(batch))
            except Exception as error:  # the thread must outlive a bug in one batch
                log.exception("decode step failed batch=%d", len(batch))
                failure = McError(
                    f"internal error: {type(error).__name__}; see the log of this daemon"
                )
                for sequence in batch:
                    self._callbacks.failed(sequence.request, failure)

    def _admit(self) -> bool:
        """Take in who joins and let go who leaves; wait while there is nothing to do. False at the end."""
        while True:
            with self._changed:
                while not (self._joining or self._leaving or self._active or self._is_closed):
                    self._changed.wait()
                joining, self._joining = self._joining, []
                leaving, self._leaving = self._leaving, []
            if self._is_closed:
                return False
            self._active.extend(self._start(request) for request in joining)
            if leaving:
                gone = set(map(id, leaving))
                self._active = deque(s for s in self._active if id(s.request) not in gone)
                for request in leaving:
                    self._callbacks.left(request)
            if self._active:
                return True

    def _start(self, request: Request) -> _Sequence:
        sampling = request.message.sampling
        eos = () if sampling.ignore_eos else self._instance.model.eos_token_ids
        return _Sequence(
            request=request,
            token=request.tokens[-1],
            position=request.num_prompt_tokens,
            num_left=sampling.max_tokens - len(request.tokens),
            sampler=Sampler(sampling),
            stop_tokens=frozenset(eos),
        )

    def _step(self, batch: Sequence[_Sequence]) -> list[_Sequence]:
        """One token for each; those that go on."""
        began_s = time.monotonic()
        rows = [
            DecodeRow(sequence.request.slot, sequence.token, sequence.position)
            for sequence in batch
            if sequence.request.slot is not None
        ]
        logits = self._instance.runner.decode(rows)
        tokens = sample_rows(
            logits,
            [sequence.sampler for sequence in batch],
            [sequence.position + 1 for sequence in batch],
        )
        steps = []
        going_on = []
        for sequence, token in zip(batch, tokens, strict=True):
            sequence.token = token
            sequence.position += 1
            sequence.num_left -= 1
            finish: FinishReason | None = None
            if token in sequence.stop_tokens:
                finish = "stop"
            elif sequence.num_left <= 0:
                finish = "length"
            else:
                going_on.append(sequence)
            steps.append(Stepped(sequence.request, token, finish))
        self._callbacks.stepped(steps, time.monotonic() - began_s)
        return going_on
