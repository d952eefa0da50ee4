"""The device tier of a prefill node: where a prompt gets its slot, what stays in it afterwards. Loop thread only.

A prompt whose prefix is all of an idle slot, or nearly all, goes on in that slot; else the prefix is copied into a slot
of its own (engine/arena/prompt_slot.py).
"""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final

from daemons.core.ids import BlockHash
from daemons.engine.arena.prompt_slot import give_slot
from daemons.engine.arena.retained import ChainOf, Found, HeldBlock, Listener, RetainedSlots
from daemons.engine.arena.slot_copy import SlotCopier, SlotCopy
from daemons.engine.instance import Instance
from daemons.mc_prefill.job import Job
from daemons.mc_prefill.reuse import Reuse
from daemons.protocol.block import BlockFilter, BlockMeta, SealedBlock
from daemons.protocol.prefix_hash import root_hash, tenant_namespace

_MAX_CLEARS: Final = 64
"""Looked back for prompts that were being computed meanwhile."""


class DeviceTier:
    """Nothing is kept with a `fraction` of 0, or where reuse is not exact."""

    def __init__(
        self,
        instance: Instance,
        fraction: float,
        copier: SlotCopier,
        listener: Listener,
        clock: Callable[[], float],
    ) -> None:
        if not instance.model.is_reuse_safe:
            fraction = 0.0
        limit_tokens = int(fraction * instance.arena.capacity_tokens)
        self.slots = RetainedSlots(limit_tokens, instance.release, listener)
        self._instance = instance
        self._copier = copier
        self._clock = clock
        self._clears: list[tuple[float, BlockFilter]] = []
        """When, the latest last."""
        self._untold_s = float("-inf")
        """What was cleared up to then is not all known any more."""

    @property
    def free_tokens(self) -> int:
        """What a prompt could have."""
        return self._instance.arena.free_tokens + self.slots.idle_tokens

    def num_known(self, job: Job) -> int:
        """Blocks that the prompt would find here now."""
        found = self._find(job)
        return 0 if found is None else found.num_blocks

    def give_slot(self, job: Job) -> bool:
        """Room for the prompt, with the beginning of it in place or to be copied there; False: none now."""
        job.began_s = self._clock()
        given = give_slot(self._instance.arena, self.slots, self._find(job), job.num_tokens)
        if given is None:
            return False
        job.slot, job.kept, job.source = given.slot, given.kept, given.source
        job.reused = Reuse(self._instance.geometry.block_tokens, given.num_held)
        return True

    def start_copy(self, job: Job, on_end: Callable[[], object]) -> None:
        """The prompt has its slot: bring its beginning there, where it is not. `on_end` comes if there is anything."""
        source, reuse = job.source, job.reused
        if source is None:
            return
        assert job.slot is not None, "a copy has a target"
        assert reuse is not None, "a copy is for reuse"
        reuse.copy = SlotCopy(self._instance, source.slot, job.slot, reuse.held_tokens)

        def end() -> None:
            job.source = None
            self.slots.let_go(source)
            on_end()

        self._copier.start(reuse.copy, end)

    def computed(self, job: Job) -> None:
        """All KV of the prompt is final in its slot: from now on others may take it from there."""
        request, slot, now_s = job.request, job.slot, self._clock()
        if slot is None or not request.hashes or request.cache == "bypass":
            return
        if not self.slots.limit_tokens or self.is_cleared(job):
            return
        if job.kept is not None:
            self.slots.extend(job.kept, request.hashes, now_s=now_s)
            return
        root = root_hash(tenant_namespace(request.namespace, request.tenant))
        chain = ChainOf(root, request.model, request.tenant)
        job.kept = self.slots.add(slot, chain, request.hashes, now_s=now_s)

    def is_cleared(self, job: Job) -> bool:
        """Whether what it found here was cleared meanwhile; also where there were too many clears to tell."""
        return self._untold_s >= job.began_s or any(
            at_s >= job.began_s and _may_mean(wanted, at_s, job) for at_s, wanted in self._clears
        )

    def release(self, job: Job) -> None:
        """Nobody works for the prompt any more: void what peers know of its slot, and keep what is good in it."""
        slot, job.slot = job.slot, None
        kept, job.kept = job.kept, None
        assert slot is not None, "released once"
        if kept is None:
            self._instance.release(slot)
            return
        self._instance.generations.advance(slot.index)
        self.slots.let_go(kept)

    def close(self) -> None:
        self._copier.close()

    # -- what the master is told, and says -----------------------------------------------------------------------

    def hashes(self) -> list[BlockHash]:
        return self.slots.hashes()

    def describe(self, hashes: Iterable[BlockHash]) -> list[SealedBlock]:
        return [self._sealed(held) for held in self.slots.describe(hashes)]

    def usage(self) -> tuple[int, int]:
        """In bytes, of blocks that are held and of what may be idle."""
        geometry = self._instance.geometry
        limit_bytes = self.slots.limit_tokens * geometry.bytes_per_token
        return self.slots.num_blocks * geometry.block_bytes, limit_bytes

    def forget(self, hashes: Sequence[BlockHash]) -> None:
        self.slots.forget(hashes)

    def forget_ahead(self, wanted: BlockFilter, age_s: float = 0.0) -> None:
        """What prompts were making so long ago is not to stay where it may be what was cleared then."""
        insort(self._clears, (self._clock() - age_s, wanted), key=itemgetter(0))
        if len(self._clears) > _MAX_CLEARS:
            oldest_s, _ = self._clears.pop(0)
            self._untold_s = max(self._untold_s, oldest_s)

    def _sealed(self, held: HeldBlock) -> SealedBlock:
        """As for a report; readers get no place of it."""
        geometry = self._instance.geometry
        meta = BlockMeta(
            hash=held.hash,
            parent=held.parent,
            namespace=self._instance.model.namespace,
            depth=held.depth,
            num_tokens=geometry.block_tokens,
            model=held.chain.model,
            tenant=held.chain.tenant,
        )
        return SealedBlock(
            meta=meta,
            offset=0,
            length=geometry.block_bytes,
            trailer_bytes=0,
            version=0,
            seal_checksum=0,
            num_layers=geometry.num_layers,
            age_ms=max(0, int((self._clock() - held.made_s) * 1000)),
        )

    # -- slots ---------------------------------------------------------------------------------------------------

    def _find(self, job: Job) -> Found | None:
        request = job.request
        if request.cache == "bypass" or not self.slots.limit_tokens:
            return None
        # The last token is always computed: its logits choose the first token of the answer.
        usable = (job.num_tokens - 1) // self._instance.geometry.block_tokens
        return self.slots.find(request.hashes, usable)


def _may_mean(wanted: BlockFilter, at_s: float, job: Job) -> bool:
    """Whether a clear of that time may be of the prompt's blocks: those that it did not make may be of any age."""
    request = job.request
    made_s = float("-inf") if job.num_reused_tokens else job.began_s
    if (
        wanted.model not in (None, request.model)
        or wanted.tenant not in (None, request.tenant)
        or made_s > at_s - (wanted.older_than_s or 0.0)
    ):
        return False
    hashes = set(request.hashes)
    if wanted.hashes is not None:
        hashes.intersection_update(wanted.hashes)
    prefix = (wanted.hash_prefix or "").lower()
    return any(each.hex().startswith(prefix) for each in hashes)
