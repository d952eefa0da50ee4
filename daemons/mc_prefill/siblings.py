"""Prompts that share a prefix with one that is being computed here: they wait for it and reuse its blocks, instead of
computing them again right behind it. The model works on one prompt at a time, so waiting costs next to nothing.

Loop thread only. Whatever goes wrong, the prompt starts with the prefix of its plan.
"""

from collections.abc import Callable, Iterable
from typing import Final

from daemons.core.ids import BlockHash
from daemons.mc_prefill.job import Job
from daemons.protocol.block import BlockLocation
from daemons.rpc import Loop

MIN_BLOCKS: Final = 2
"""Fewer are computed sooner than they are looked up."""
_SEAL_S: Final = 0.03
"""After the other prompt is computed its last blocks are still on their way to a cache node and to the master."""

Match = Callable[[list[BlockHash], Callable[[list[BlockLocation]], object]], object]
"""Ask the master where the blocks of a chain are; exactly one answer, empty where there is none."""


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

    def is_ready(self, job: Job, running: Iterable[Job]) -> bool:
        """False: not yet; `on_ready` comes, or one of `running` ends."""
        if job.sibling == "looked":
            return True
        if job.sibling == "asked":
            return False
        if any(is_making(other, job) for other in running if other is not job):
            job.sibling = "waiting"
            return False
        if job.sibling == "none":
            return True
        job.sibling = "asked"
        self._loop.call_later(_SEAL_S, self._ask, job)
        return False

    def _ask(self, job: Job) -> None:
        if job.is_ended:
            return
        self._match(job.request.hashes, lambda found: self._found(job, found))

    def _found(self, job: Job, found: list[BlockLocation]) -> None:
        if job.is_ended:
            return
        job.sibling = "looked"
        num_more = len(found) - len(job.request.matched)
        if num_more > 0:
            job.reuse(found)
            self._on_reused(num_more)
        self._on_ready()


def is_making(other: Job, job: Job) -> bool:
    """Whether the other prompt's KV has the next blocks that this one lacks, and will be offered to the pool."""
    mine, theirs = job.request.hashes, other.request.hashes
    last = len(job.request.matched) + MIN_BLOCKS - 1
    return (
        job.request.cache == "use"
        and other.request.cache == "use"
        and other.request.put_target is not None
        and len(mine) > last
        and len(theirs) > last
        and mine[last] == theirs[last]
    )
