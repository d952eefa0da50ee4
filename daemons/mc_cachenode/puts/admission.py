"""Which block of a put gets a slot to be pulled into, and why another gets none."""

from collections.abc import Callable
from functools import partial

from daemons.core.errors import Exhausted
from daemons.core.ids import short
from daemons.core.units import format_size
from daemons.mc_cachenode.puts.making_room import is_of_same_put, make_room
from daemons.mc_cachenode.puts.refusal import payload_bytes, refusal
from daemons.mc_cachenode.puts.session import PutParts, PutSession
from daemons.mc_cachenode.puts.shortages import Shortages
from daemons.mc_cachenode.replica import VERSION, Replica
from daemons.protocol.block import PutBlock, PutStatus
from daemons.protocol.tenant import tenant_of
from daemons.store.segment.seal import BadSeal, trailer_length


class Admission:
    """Loop thread only."""

    def __init__(self, parts: PutParts) -> None:
        self._parts = parts
        self.refused: dict[str, str] = {}
        """Tenants above their pool quota, and why nothing of theirs makes room."""
        self._shortages = Shortages(parts.replicas)
        parts.reporter.short_of = self._shortages.take
        parts.reporter.on_fitting = self._shortages.on_answer

    def begin(self, session: PutSession, block: PutBlock) -> Replica | PutStatus:
        """A slot to pull into, or why there is nothing to pull."""
        why = refusal(block)
        if why is not None:
            session.why = f"block {short(block.meta.hash)} is malformed: {why}"
            return "failed"
        if block.version and self._parts.replicas.remembered.is_dead(
            block.meta.hash, block.version
        ):
            session.why = f"version {block.version} was deleted or replaced meanwhile"
            return "conflict"
        existing = self._parts.replicas.get(block.meta.hash)
        if existing is not None:
            status = self._compare(block, existing)
            if status is not None:
                return status
        why = self._refused_tenant(block) if self.refused else None
        if why is not None:
            return session.exhausted(Exhausted(why))
        try:
            return self._allocate(block)
        except Exhausted as error:
            return session.exhausted(Exhausted(f"{error.message}; {self._what_stays()}"))

    def _refused_tenant(self, block: PutBlock) -> str | None:
        meta = block.meta
        tenant = tenant_of(meta.tenant, meta.namespace, is_object=bool(block.version))
        return self.refused.get(tenant)

    def _what_stays(self) -> str:
        """What of this node's memory cannot make room now; the master counts leases and pins when it is full."""
        parts = self._parts
        return (
            f"{format_size(parts.replicas.writing_bytes)} being written, "
            f"{format_size(parts.reporter.leased_bytes)} leased to readers, "
            f"{format_size(parts.reporter.pinned_bytes)} pinned hard"
        )

    def _allocate(self, block: PutBlock) -> Replica:
        """Raises Exhausted when nothing is free yet."""
        parts, replicas, length = self._parts, self._parts.replicas, payload_bytes(block)
        version = block.version or VERSION
        try:
            return replicas.begin(block.meta, length, block.num_layers, version=version)
        except Exhausted:
            stays = partial(is_of_same_put, block.meta, block.version)
            may_choose = parts.is_joined() or parts.may_evict()
            if not (may_choose and self.make_room(length, block.num_layers, stays)):
                raise
        return replicas.begin(block.meta, length, block.num_layers, version=version)

    def make_room(
        self, length: int, num_layers: int, stays: Callable[[Replica], bool] = lambda _: False
    ) -> bool:
        """Whether any block went at once: without a master it is this node's own choice. Else the master is asked."""
        parts = self._parts
        if parts.is_joined():
            if self._shortages.want(length + trailer_length(num_layers)):
                parts.reporter.changed()
            return False
        freed = make_room(parts.replicas, length, num_layers, parts.leaves_later, stays)
        for block_hash in freed:
            parts.reporter.freed(block_hash)
            parts.metrics.freed_blocks.labels("own").inc()
        return bool(freed)

    def _compare(self, block: PutBlock, existing: Replica) -> PutStatus | None:
        """None: what was here is damaged and gone, put it again; or it is an older version."""
        if block.version:
            if existing.state == "writing":
                return "being_written"
            if existing.version < block.version:
                return None
            return "already_sealed" if existing.version == block.version else "conflict"
        if existing.length != block.source.ranges.length:
            return "conflict"
        if existing.state == "writing":
            return "being_written"
        if block.checksums is not None:
            try:
                sealed = self._parts.replicas.trailer(existing).checksums
            except BadSeal as error:
                self._parts.drop(existing, error.message)
                return None
            if list(sealed) != block.checksums:
                return "conflict"
        self._parts.replicas.touch(block.meta.hash)
        return "already_sealed"
