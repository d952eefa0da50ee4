"""Who may ask what: one table from request to roles, for connections that are known by their keys.

Closed: a request that is not in it is refused, and a test finds it. A member speaks for itself alone, and a client of
objects in its own namespaces.
"""

from collections.abc import Mapping
from typing import Final

from daemons.protocol import (
    block,
    cache,
    event,
    lookup,
    node,
    objects,
    pin,
    probe,
    replication,
    report,
    request,
    request_list,
    segment,
    tenant,
    tiers,
)
from daemons.protocol.base import Message, Ping
from daemons.protocol.key import KEY_ROLES, AllowedKey, KeyRole
from daemons.protocol.name_hash import chunk_key, name_key
from daemons.protocol.node import Beat, Join, Leave

_ALL: Final = frozenset(KEY_ROLES)
_ADMIN: Final[frozenset[KeyRole]] = frozenset({"admin"})
_MEMBERS: Final[frozenset[KeyRole]] = frozenset({"cachenode", "prefill", "decode", "gateway"})
_USERS: Final[frozenset[KeyRole]] = frozenset({"cachenode", "prefill", "decode", "admin"})
_STORES: Final[frozenset[KeyRole]] = _USERS | {"client"}
_VIEWERS: Final[frozenset[KeyRole]] = frozenset({"gateway", "admin"})

ALLOWED: Final[Mapping[type[Message], frozenset[KeyRole]]] = {
    Ping: _ALL,
    node.Hello: _ALL,
    # membership
    Join: _MEMBERS,
    Beat: _MEMBERS,
    Leave: _MEMBERS | _ADMIN,
    node.ListNodes: _VIEWERS,
    node.ListModels: _VIEWERS,
    # blocks
    report.Report: frozenset({"cachenode", "prefill", "decode"}),
    block.Put: _STORES,
    lookup.Match: _USERS,
    lookup.Locate: _STORES,
    block.BadReplica: _STORES,
    tiers.Stage: _STORES,
    tiers.Unstage: _STORES,
    cache.FlushBlocks: _ADMIN,
    block.SuspectNode: _USERS,
    cache.CacheStat: _VIEWERS,
    event.ReadEvents: _VIEWERS,
    cache.ListBlocks: _ADMIN,
    cache.ClearBlocks: _ADMIN,
    pin.PinBlocks: _ADMIN,
    # objects
    objects.ReserveNames: _STORES,
    objects.ReleaseNames: _STORES,
    objects.LocateNames: _STORES,
    objects.ExistNames: _STORES,
    objects.DeleteNames: _STORES,
    objects.ListNames: _STORES,
    objects.StatNames: _USERS,
    # replicas
    replication.CopyFailed: frozenset({"cachenode"}),
    replication.AwaitReplicas: _STORES,
    replication.ReplicateBlocks: _ADMIN,
    replication.MoveBlocks: _ADMIN,
    replication.DrainNode: _ADMIN,
    # tenants
    tenant.SetPoolQuota: _ADMIN,
    tenant.ListPoolUsage: _VIEWERS,
    # segments
    segment.ListSegments: _ADMIN,
    segment.AddSegment: _ADMIN,
    segment.RemoveSegment: _ADMIN,
    # requests
    request.Schedule: _VIEWERS,
    request.Generate: _VIEWERS,
    request.Prefill: frozenset({"decode"}),
    request.Pulled: frozenset({"decode"}),
    request.Cancel: frozenset({"gateway", "decode", "admin"}),
    request.RequestDone: frozenset({"decode"}),
    request_list.ListRequests: _VIEWERS,
    probe.DataProbe: _ADMIN,
}
_MAX_NUMBER: Final = 1 << 64
EVENT_READERS: Final = _VIEWERS
"""Who may subscribe to the master's events."""


def refusal(message: Message, peer: AllowedKey) -> str | None:
    """Why this peer may not ask this, or None."""
    roles = ALLOWED.get(type(message), frozenset())
    if peer.role not in roles:
        allowed = ", ".join(sorted(roles)) or "nobody"
        return (
            f"the key of {peer.node} is a {peer.role}'s; {type(message).__name__} is for: {allowed}"
        )
    match message:
        case Join():
            said = message.node
            if (said.node, said.role) != (peer.node, peer.role):
                return f"the key of {peer.role} {peer.node} cannot join as {said.role} {said.node}"
        case Leave() if peer.role == "admin":  # on behalf of one that is dead
            pass
        case Beat() | Leave() | report.Report() | replication.CopyFailed():
            if message.node != peer.node:
                return f"the key of {peer.node} cannot speak for node {message.node}"
        case _:
            pass
    own = namespaces_of(peer)
    return None if own is None else _foreign(message, peer, own)


def namespaces_of(peer: AllowedKey | None) -> frozenset[bytes] | None:
    """Whose objects this key may use, and nothing else of the pool; None: all of it."""
    if peer is None or peer.role != "client":
        return None
    return frozenset(namespace.encode() for namespace in peer.namespaces)


def _foreign(message: Message, peer: AllowedKey, own: frozenset[bytes]) -> str | None:
    """Requests that name a block by its hash alone are for whoever knows the block to look at."""
    match message:
        case (
            objects.ReserveNames()
            | objects.ReleaseNames()
            | objects.LocateNames()
            | objects.ExistNames()
            | objects.DeleteNames()
            | objects.ListNames()
        ):
            is_own = message.namespace in own
        case block.Put():
            is_own = all(put.meta.namespace in own and _is_object(put) for put in message.blocks)
        case _:
            return None
    if is_own:
        return None
    return (
        f"the key of client {peer.node} is for objects in: {', '.join(map(repr, peer.namespaces))}"
    )


def _is_object(put: block.PutBlock) -> bool:
    """An object of its namespace, or a chunk of one: under no key that could be anybody else's."""
    meta = put.meta
    if not 0 < put.version < _MAX_NUMBER or meta.model or meta.tenant:
        return False
    if meta.name:
        return meta.hash == name_key(meta.namespace, meta.name)
    key = name_key(meta.namespace, put.object_name)
    return 0 < meta.depth < _MAX_NUMBER and (
        (meta.parent, meta.hash) == (key, chunk_key(key, put.version, meta.depth - 1))
    )
