"""What a prompt brings to the pool: blocks that were computed, as they come, and those that only the arena had.

Each offer holds the prompt's slot until the cache node has answered. Loop thread only.
"""

from collections.abc import Callable

from daemons.client.publisher import Publisher, block_meta
from daemons.engine.instance import Instance
from daemons.mc_prefill.job import Holder, Job
from daemons.mc_prefill.siblings import Match
from daemons.protocol.block import BlockLocation, PutBlock


class Offering:
    """Nothing is offered without a publisher, or where reuse is not exact."""

    def __init__(
        self,
        publisher: Publisher | None,
        instance: Instance,
        match: Match,
        is_cleared: Callable[[Job], bool],
        on_stored: Callable[[int], object],
        let_go: Callable[[Job, Holder], object],
    ) -> None:
        """`is_cleared`: what a prompt found, meanwhile. `on_stored`: so many blocks are in the pool."""
        self._publisher = publisher if instance.model.is_reuse_safe else None
        self._instance = instance
        self._match = match
        self._is_cleared = is_cleared
        self._on_stored = on_stored
        self._let_go = let_go

    def chunk_done(self, job: Job, start: int, end: int) -> None:
        """All layers of tokens [start, end) exist."""
        size = self._instance.geometry.block_tokens
        first, last = -(-start // size), min(end // size, len(job.request.hashes))
        if first < last and self._may_offer(job):
            self._offer(job, first, last)

    def computed(self, job: Job) -> None:
        """What was in the arena and, by the plan, not in the pool is put there: blocks behind it are of no use there
        without it. Others may have put it meanwhile, so the master is asked; nothing is put where it does not say.
        """
        first = len(job.request.matched)
        num_held = job.num_held_tokens // self._instance.geometry.block_tokens
        if first >= num_held or not self._may_offer(job) or self._is_cleared(job):
            return
        holder: Holder = job.request.hashes[first]
        job.holders.add(holder)

        def on_found(found: list[BlockLocation] | None) -> None:
            if found is None or job.slot is None or len(found) >= num_held or self._is_cleared(job):
                self._let_go(job, holder)
            else:
                job.holders.discard(holder)
                self._offer(job, len(found), num_held)

        self._match(job.request.hashes[:num_held], on_found)

    def _may_offer(self, job: Job) -> bool:
        request = job.request
        is_wanted = request.put_target is not None and request.cache == "use"
        return self._publisher is not None and is_wanted and job.slot is not None

    def _offer(self, job: Job, first: int, last: int) -> None:
        """Blocks [first, last)."""
        request, slot, geometry = job.request, job.slot, self._instance.geometry
        assert self._publisher is not None, "there is a way"
        assert request.put_target is not None, "there is a pool"
        assert slot is not None, "it is held"
        size = geometry.block_tokens
        holder: Holder = request.hashes[first]
        job.holders.add(holder)
        job.num_published_blocks += last - first
        blocks = [
            PutBlock(
                meta=block_meta(request, request.hashes, index, size),
                source=self._instance.source(slot, index * size, (index + 1) * size),
                num_layers=geometry.num_layers,
            )
            for index in range(first, last)
        ]

        def on_done(num_stored: int) -> None:
            self._on_stored(num_stored)
            self._let_go(job, holder)

        self._publisher.offer(
            request.put_target, blocks, on_done, is_wanted=lambda: not self._is_cleared(job)
        )
