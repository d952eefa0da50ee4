"""The one thread that runs the model: prompts in the order they came, chunk by chunk, cancellable between layers."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from daemons.core.errors import McError
from daemons.engine.base import Cancelled
from daemons.engine.instance import Instance
from daemons.mc_prefill.job import Computed, Job, JobHooks, PrefixShrank
from daemons.protocol.request import Timing

log = logging.getLogger(__name__)

MakeHooks = Callable[[Job, int], JobHooks]
"""(job, first computed token) -> its hooks"""


class ModelThread:
    """`submit` from the loop; `on_end` is called on this thread with what came out, and must hand it over."""

    def __init__(
        self,
        instance: Instance,
        make_hooks: MakeHooks,
        on_end: Callable[[Job, Computed | McError], object],
    ) -> None:
        self._instance = instance
        self._make_hooks = make_hooks
        self._on_end = on_end
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """The queue's bound is the daemon's bound on admitted jobs."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def withdraw(self, job: Job) -> bool:
        """Take back a job that was not begun; False when the model has it, and `on_end` will come."""
        with self._changed:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            return True

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout=10)

    def _next(self) -> Job | None:
        with self._changed:
            while not self._jobs and not self._is_closed:
                self._changed.wait()
            return None if self._is_closed else self._jobs.popleft()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                outcome: Computed | McError = self._compute(job)
            except McError as error:
                outcome = error
            except Exception as error:  # the thread must outlive a bug in one prompt
                log.exception("prefill failed request=%s", job.request.request_id)
                outcome = McError(
                    f"internal error: {type(error).__name__}; see the log of this daemon"
                )
            self._on_end(job, outcome)

    def _compute(self, job: Job) -> Computed:
        began_s = time.monotonic()
        wait_s = 0.0
        reuse = job.reused
        assert reuse is not None, "a job is submitted with its slot"
        num_good = reuse.wait_opened()
        wait_s += time.monotonic() - began_s
        while True:
            if job.cancelled.is_set():
                raise Cancelled("cancelled before it was computed")
            start = num_good * self._instance.geometry.block_tokens
            hooks = self._make_hooks(job, start)
            try:
                first_token = self._prefill(job, start, hooks)
                break
            except PrefixShrank:
                num_good = reuse.num_blocks
            finally:
                wait_s += hooks.wait_s
        job.num_reused_tokens = start
        elapsed_s = time.monotonic() - began_s
        timing = Timing(
            prefill_queue_s=began_s - job.arrived_s,
            load_s=reuse.load_s,
            load_wait_s=wait_s,
            compute_s=elapsed_s - wait_s,
            loaded_bytes=reuse.loaded_bytes,
        )
        return Computed(job, first_token, timing)

    def _prefill(self, job: Job, start: int, hooks: JobHooks) -> int:
        assert job.slot is not None, "a job is submitted with its slot"
        request = job.request
        return self._instance.engine.prefill(
            job.slot, request.tokens, start, hooks, request.sampling
        )
