"""Who may ask what: one table from request to roles, for connections that are known by their keys.

Closed: a request that is not in it is refused, and a test finds it. A member speaks for itself alone.
"""

from collections.abc import Mapping
from typing import Final

from daemons.protocol import block, event, node, objects, pin, replication, request
from daemons.protocol.base import Message, Ping
from daemons.protocol.key import KEY_ROLES, AllowedKey, KeyRole
from daemons.protocol.node import Beat, Join, Leave

_ALL: Final = frozenset(KEY_ROLES)
_ADMIN: Final[frozenset[KeyRole]] = frozenset({"admin"})
_MEMBERS: Final[frozenset[KeyRole]] = frozenset({"cachenode", "prefill", "decode", "gateway"})
_USERS: Final[frozenset[KeyRole]] = frozenset({"cachenode", "prefill", "decode", "admin"})
_VIEWERS: Final[frozenset[KeyRole]] = frozenset({"gateway", "admin"})

ALLOWED: Final[Mapping[type[Message], frozenset[KeyRole]]] = {
    Ping: _ALL,
    node.Hello: _ALL,
    # membership
    Join: _MEMBERS,
    Beat: _MEMBERS,
    Leave: _MEMBERS,
    node.ListNodes: _VIEWERS,
    node.ListModels: _VIEWERS,
    # blocks
    block.Report: frozenset({"cachenode"}),
    block.Put: _USERS,
    block.Match: _USERS,
    block.Locate: _USERS,
    block.BadReplica: _USERS,
    block.Stage: _USERS,
    block.Unstage: _USERS,
    block.FlushBlocks: _ADMIN,
    block.SuspectNode: _USERS,
    block.CacheStat: _VIEWERS,
    event.ReadEvents: _VIEWERS,
    block.ListBlocks: _ADMIN,
    block.ClearBlocks: _ADMIN,
    pin.PinBlocks: _ADMIN,
    # objects
    objects.ReserveNames: _USERS,
    objects.ReleaseNames: _USERS,
    objects.LocateNames: _USERS,
    objects.ExistNames: _USERS,
    objects.DeleteNames: _USERS,
    objects.ListNames: _USERS,
    objects.StatNames: _USERS,
    # replicas
    replication.CopyFailed: frozenset({"cachenode"}),
    replication.AwaitReplicas: _USERS,
    replication.ReplicateBlocks: _ADMIN,
    replication.MoveBlocks: _ADMIN,
    replication.DrainNode: _ADMIN,
    # requests
    request.Schedule: _VIEWERS,
    request.Generate: _VIEWERS,
    request.Prefill: frozenset({"decode"}),
    request.Pulled: frozenset({"decode"}),
    request.Cancel: frozenset({"gateway", "decode", "admin"}),
    request.RequestDone: frozenset({"decode"}),
    request.ListRequests: _VIEWERS,
    request.DataProbe: _ADMIN,
}
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
        case Beat() | Leave() | block.Report() | replication.CopyFailed():
            if message.node != peer.node:
                return f"the key of {peer.node} cannot speak for node {message.node}"
        case _:
            pass
    return None
