"""Pool quotas: a tenant above its own loses its coldest blocks; where none may go, nodes refuse what it puts.

Counted anew each beat interval, and added up in between as reports come in: what a tenant is over for a moment is what
it puts in a twentieth of a second. Costs nothing while nobody has a quota.
"""

import logging
from collections import Counter
from typing import Final, assert_never

import numpy as np

from daemons.conductor.membership import Member
from daemons.core.errors import Exhausted, ProtocolError
from daemons.core.units import format_size
from daemons.mc_master.state import MasterState
from daemons.mc_master.tenants.quota_file import QuotaFile
from daemons.protocol.base import Ok
from daemons.protocol.block import FreeBlocks
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.tenant import (
    ListPoolUsage,
    ListPoolUsageReply,
    PoolUsage,
    RefusedTenant,
    RefuseTenants,
    SetPoolQuota,
)
from daemons.rpc import Call
from daemons.store.directory.tenant_usage import TenantHeld, held_by_tenant, name_victims, owner_of

log = logging.getLogger(__name__)

QuotaRequest = SetPoolQuota | ListPoolUsage
_MAX_QUOTAS: Final = 4096
_MAX_NAME: Final = 255
_MAX_VICTIMS: Final = 4096
_LEAVE: Final = 0.95
"""Of its quota is left to a tenant that was above it."""
_CHECK_S: Final = 0.05


class Quotas:
    """Loop thread only."""

    def __init__(self, state: MasterState, file: QuotaFile) -> None:
        self._state = state
        self._file = file
        self._held: dict[str, TenantHeld] = {}
        self._added: Counter[str] = Counter()
        """Bytes sealed since they were counted."""
        self._evicted: Counter[str] = Counter()
        self._refused: dict[str, str] = {}
        self._next_check_s = 0.0

    def handle(self, call: Call, message: QuotaRequest) -> None:
        match message:
            case SetPoolQuota():
                self._set(message)
                call.reply(Ok())
            case ListPoolUsage():
                call.reply(ListPoolUsageReply(tenants=self._usage()))
            case _:
                assert_never(message)

    def tick(self) -> None:
        """Once per beat interval."""
        if self._file.quotas:
            self._check()
        elif self._refused:
            self._refuse({})
        self._state.metrics.show_quotas(self._file.quotas, self._held)

    def on_sealed(self, sealed: SealedBlocks) -> None:
        """As reported: copies and repeats count until they are counted right."""
        quotas = self._file.quotas
        if not quotas:
            return
        location = sealed.locations()
        sizes = np.bincount(location["common"], weights=location["length"]).tolist()
        for kind, num_bytes in zip(sealed.kinds, sizes, strict=False):
            self._added[owner_of(kind)] += int(num_bytes)
        is_over = any(
            self._used(tenant) > quotas[tenant] for tenant in self._added if tenant in quotas
        )
        if is_over and self._state.now_s() >= self._next_check_s:
            self._check()

    def on_joined(self, member: Member) -> None:
        if member.node.segments:
            self._tell(member)

    def _set(self, message: SetPoolQuota) -> None:
        """Raises ProtocolError, Exhausted."""
        if not 0 < len(message.tenant) <= _MAX_NAME or not 0 <= message.num_bytes < 1 << 62:
            raise ProtocolError(
                f"a quota of {message.num_bytes} bytes for a name of {len(message.tenant)} letters"
            )
        if message.tenant not in self._file.quotas and len(self._file.quotas) >= _MAX_QUOTAS:
            raise Exhausted(f"{_MAX_QUOTAS} tenants have pool quotas; this master takes no more")
        self._file.set(message.tenant, message.num_bytes)
        limit = format_size(message.num_bytes) if message.num_bytes else "none"
        log.info("pool quota set tenant=%s bytes=%s", message.tenant, limit)
        self.tick()

    def _usage(self) -> list[PoolUsage]:
        held = held_by_tenant(self._state.directory, now_s=self._state.now_s())
        names = sorted({*self._file.quotas, *(name for name in held if name)})
        return [self._usage_of(name, held.get(name, TenantHeld())) for name in names]

    def _usage_of(self, tenant: str, held: TenantHeld) -> PoolUsage:
        return PoolUsage(
            tenant=tenant,
            quota_bytes=self._file.quotas.get(tenant, 0),
            used_bytes=held.used_bytes,
            leased_bytes=held.leased_bytes,
            pinned_bytes=held.pinned_bytes,
            num_evicted=self._evicted[tenant],
            is_refused=tenant in self._refused,
        )

    def _used(self, tenant: str) -> int:
        held = self._held.get(tenant)
        return (held.used_bytes if held is not None else 0) + self._added[tenant]

    def _check(self) -> None:
        state, now_s = self._state, self._state.now_s()
        self._next_check_s = now_s + _CHECK_S
        self._held = held_by_tenant(state.directory, now_s=now_s)
        self._added.clear()
        refused = {}
        for tenant, limit in self._file.quotas.items():
            held = self._held.get(tenant)
            if held is not None and held.used_bytes > limit:
                freed = self._evict(tenant, held.used_bytes - int(_LEAVE * limit), now_s)
                if held.used_bytes - freed > limit:
                    refused[tenant] = _why(tenant, limit, held)
        self._refuse(refused)

    def _evict(self, tenant: str, num_bytes: int, now_s: float) -> int:
        """How many bytes are on their way out."""
        state = self._state
        named, freed = name_victims(
            state.directory, tenant, num_bytes, now_s=now_s, max_blocks=_MAX_VICTIMS
        )
        for node, hashes in named.items():
            member = state.membership.get(node)
            if member is not None:
                state.out.notify(member, FreeBlocks(hashes=hashes))
            self._evicted[tenant] += len(hashes)
        return freed

    def _refuse(self, refused: dict[str, str]) -> None:
        """Nodes are told when others are refused; how much they hold by now is not worth a message."""
        is_same = refused.keys() == self._refused.keys()
        for tenant in refused.keys() - self._refused.keys():
            log.warning("puts refused tenant=%s why=%s", tenant, refused[tenant])
        self._refused = refused
        if is_same:
            return
        for member in self._state.membership:
            if member.node.segments and member.state != "dead":
                self._tell(member)

    def _tell(self, member: Member) -> None:
        refused = [RefusedTenant(tenant=name, why=why) for name, why in self._refused.items()]
        self._state.out.notify(member, RefuseTenants(tenants=refused))


def _why(tenant: str, limit: int, held: TenantHeld) -> str:
    return (
        f"tenant {tenant} holds {format_size(held.used_bytes)} in the pool, above its quota of {format_size(limit)}, "
        f"and {format_size(held.leased_bytes)} of it are leased to readers, {format_size(held.pinned_bytes)} pinned "
        "hard; wait, unpin, or raise it with mcctl tenant quota --pool-bytes"
    )
