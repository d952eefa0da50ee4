"""The one thread that makes tokens: continuous batching, sequences join and leave between steps."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from daemons.core.errors import McError
from daemons.engine.base import Made
from daemons.engine.decode.batch import DecodeBatch
from daemons.engine.decode.sequence import Sequence
from daemons.engine.instance import Instance
from daemons.mc_decode.request import Request, Stepped

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Called on the engine thread; they must hand over to the loop."""

    stepped: Callable[[list[Stepped], float], object]
    left: Callable[[Request], object]
    failed: Callable[[Request, McError], object]


class EngineThread:
    """`join` and `leave` from the loop. After `leave`, `left` comes once no step works on the slot."""

    def __init__(self, instance: Instance, max_batch: int, callbacks: Callbacks) -> None:
        self._instance = instance
        self._callbacks = callbacks
        self._joining: list[Request] = []
        self._leaving: list[Request] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._batch = DecodeBatch(max_batch)
        self._requests: dict[str, Request] = {}
        """By id, those in the batch."""
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
            step = self._batch.begin_step()
            try:
                began_s = time.monotonic()
                made = self._instance.engine.decode(step)
                self._tell(step, self._end_step(step, made), time.monotonic() - began_s)
            except Exception as error:  # the thread must outlive a bug in one batch
                log.exception("decode step failed batch=%d", len(step))
                self._drop(error)

    def _admit(self) -> bool:
        """Take in who joins and let go who leaves; wait while there is nothing to do. False at the end."""
        while True:
            with self._changed:
                while not (self._joining or self._leaving or self._requests or self._is_closed):
                    self._changed.wait()
                joining, self._joining = self._joining, []
                leaving, self._leaving = self._leaving, []
            if self._is_closed:
                return False
            for request in joining:
                self._try_start(request)
            for request in leaving:
                self._batch.cancel(request.message.request_id)
                self._requests.pop(request.message.request_id, None)
                self._callbacks.left(request)
            if self._requests:
                return True

    def _try_start(self, request: Request) -> None:
        try:
            self._start(request)
        except Exception as error:  # the thread must outlive a bug in one request
            log.exception("decode not begun request=%s", request.message.request_id)
            self._requests.pop(request.message.request_id, None)
            self._callbacks.failed(request, _internal(error))

    def _start(self, request: Request) -> None:
        assert request.slot is not None, "it joins with its KV"
        message, sampling = request.message, request.message.sampling
        self._instance.engine.upload(request.slot, 0, request.num_prompt_tokens)
        eos = () if sampling.ignore_eos else self._instance.model.eos_token_ids
        self._requests[message.request_id] = request
        self._batch.join(
            Sequence(
                request_id=message.request_id,
                slot=request.slot,
                tokens=[*message.tokens, *request.tokens],
                sampling=sampling,
                max_length=request.num_prompt_tokens + sampling.max_tokens,
                stop_tokens=frozenset(eos),
                may_draft=message.drafts,
            )
        )

    def _end_step(self, step: list[Sequence], made: list[Made]) -> list[Stepped]:
        """A stop token, or the last one that was asked for, may stand before others that were made."""
        lengths = [len(sequence.tokens) for sequence in step]
        self._batch.end_step([each.tokens for each in made])
        return [
            Stepped(
                self._requests[sequence.request_id],
                sequence.tokens[length:],
                sequence.finish,
                num_drafts=each.num_drafts,
                num_right=len(each.tokens) - 1,
            )
            for sequence, length, each in zip(step, lengths, made, strict=True)
        ]

    def _tell(self, step: list[Sequence], steps: list[Stepped], elapsed_s: float) -> None:
        for sequence in step:
            if sequence.finish is not None:
                self._instance.engine.download(
                    sequence.slot, sequence.num_prompt_tokens - 1, sequence.position
                )
                del self._requests[sequence.request_id]
        self._callbacks.stepped(steps, elapsed_s)

    def _drop(self, error: Exception) -> None:
        """A step that broke says nothing of which row broke it: all in the batch are given up."""
        why = _internal(error)
        self._batch = DecodeBatch(self._batch.max_batch)
        for request in self._requests.values():
            self._callbacks.failed(request, why)
        self._requests.clear()


def _internal(error: Exception) -> McError:
    return McError(f"internal error: {type(error).__name__}; see the log of this daemon")
