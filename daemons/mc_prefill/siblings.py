"""Prompts that share a prefix with one that is being computed here: they wait for it and reuse its blocks, instead of
computing them again right behind it. The model works on one prompt at a time, so waiting costs next to nothing.
The blocks are in the KV arena then, where they stay; if they do not, they are awaited in the pool.

Loop thread only. Whatever goes wrong, the prompt starts with the prefix of its plan.
"""

from collections.abc import Callable, Iterable
from typing import Final

from daemons.core.ids import BlockHash
from daemons.mc_prefill.job import Job
from daemons.protocol.block import BlockLocation
from daemons.rpc import Loop, Timer

MIN_BLOCKS: Final = 2
"""Fewer are computed sooner than they are looked up."""
_REPORT_S: Final = 0.03
"""After a cache node has taken the last blocks of the other prompt it still has to tell the master."""
_MOST_SEAL_S: Final = 1.0
"""So long at most for a cache node to take them, once they are computed."""

Match = Callable[[list[BlockHash], Callable[[list[BlockLocation] | None], object]], object]
"""Ask the master where the blocks of a chain are; exactly one answer, None where it does not say in time."""


class Siblings:
    """Decides for the first of those that wait whether it may start."""

    def __init__(
        self,
        loop: Loop,
        match: Match,
        on_ready: Callable[[], object],
        on_reused: Callable[[int], object],
    ) -> None:
        """`on_reused`: so many blocks were found, beyond a plan's."""
        self._loop = loop
        self._match = match
        self._on_ready = on_ready
        self._on_reused = on_reused
        self._patience: Timer | None = None

    def is_ready(self, job: Job, others: Iterable[Job], num_held: int = 0) -> bool:
        """False: not yet; `on_ready` comes, or one of `others` is computed, or its blocks are put. `num_held`: so many
        of its blocks are in the arena.
        """
        if job.sibling == "looked":
            return True
        if job.sibling == "asked":
            return False
        makers = [other for other in others if other is not job and is_making(other, job, num_held)]
        if any(other.is_running for other in makers):
            job.sibling = "waiting"
            return False
        if any(self._is_sealing(other) for other in makers):
            if job.sibling != "sealing":
                job.sibling = "sealing"
                self._patience = self._loop.call_later(_MOST_SEAL_S, self._ask, job)
            return False
        if job.sibling == "none":
            return True
        if job.sibling == "sealing" and self._patience is not None:
            self._patience.cancel()
        num_more = num_held - len(job.request.matched)
        if num_more > 0:
            job.sibling = "looked"
            self._on_reused(num_more)
            return True
        job.sibling = "asked"
        self._loop.call_later(_REPORT_S, self._ask, job)
        return False

    def _is_sealing(self, other: Job) -> bool:
        """Its last blocks are on their way to a cache node, and do not hang."""
        computed_s = other.computed_s
        if computed_s is None or not other.has_puts:
            return False
        return self._loop.clock() - computed_s < _MOST_SEAL_S

    def _ask(self, job: Job) -> None:
        if job.is_ended:
            return
        job.sibling = "asked"
        self._match(job.request.hashes, lambda found: self._found(job, found or []))

    def _found(self, job: Job, found: list[BlockLocation]) -> None:
        if job.is_ended:
            return
        job.sibling = "looked"
        num_more = len(found) - len(job.request.matched)
        if num_more > 0:
            job.reuse(found)
            self._on_reused(num_more)
        self._on_ready()


def is_making(other: Job, job: Job, num_held: int = 0) -> bool:
    """Whether the other prompt's KV has the next blocks that this one lacks, and will be offered to the pool."""
    mine, theirs = job.request.hashes, other.request.hashes
    last = max(len(job.request.matched), num_held) + MIN_BLOCKS - 1
    return (
        job.request.cache == "use"
        and other.request.cache == "use"
        and other.request.put_target is not None
        and len(mine) > last
        and len(theirs) > last
        and mine[last] == theirs[last]
    )
