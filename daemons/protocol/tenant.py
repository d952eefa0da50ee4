"""How much of the pool's DRAM a tenant may hold: its KV blocks, and the objects of the namespace that has its name."""

from daemons.protocol.base import Message, Record


class SetPoolQuota(Message, frozen=True, kw_only=True):
    """Operator to the master: the tenant holds at most so many bytes in the DRAM of all nodes; 0: any number."""

    tenant: str
    num_bytes: int


class ListPoolUsage(Message, frozen=True, kw_only=True):
    """To the master: what tenants hold; those with a quota, and those that hold something."""


class PoolUsage(Record, frozen=True, kw_only=True):
    """Of one tenant, in DRAM, every replica counted. `quota_bytes` 0: none."""

    tenant: str
    quota_bytes: int = 0
    used_bytes: int = 0
    leased_bytes: int = 0
    pinned_bytes: int = 0
    """Hard, leased or not; `leased_bytes` are of the others. Eviction leaves both alone."""
    num_evicted: int = 0
    """Replicas that had to go for the quota since this master began."""
    is_refused: bool = False
    """It is above its quota, and nothing of it may go: puts are refused."""


class ListPoolUsageReply(Message, frozen=True, kw_only=True):
    tenants: list[PoolUsage]


class RefusedTenant(Record, frozen=True, kw_only=True):
    """`why` is said to whoever puts."""

    tenant: str
    why: str


class RefuseTenants(Message, frozen=True, kw_only=True):
    """Notice from the master to every cache node: refuse what these put; replaces what it was told before."""

    tenants: list[RefusedTenant]


def tenant_of(tenant: str, namespace: bytes, *, is_object: bool) -> str:
    """Whose quota a block counts for; empty for nobody's."""
    return tenant or (namespace.decode("utf-8", "replace") if is_object else "")
