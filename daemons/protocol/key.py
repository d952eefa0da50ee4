"""Keys of processes: who may connect, and as what."""

from typing import Final, Literal, get_args

import msgspec

from daemons.core.ids import NodeId, PublicKey
from daemons.protocol.base import Message, Record
from daemons.protocol.node import Role

KeyRole = Role | Literal["admin", "client"]
"""What the owner of a key may be. An admin is an operator with mcctl; a client is an application with a Store."""
KEY_ROLES: Final[tuple[KeyRole, ...]] = (*get_args(Role), "admin", "client")
DATA_ROLES: Final[frozenset[KeyRole]] = frozenset({"cachenode", "prefill", "decode"})
"""Daemons that open each other's memory. All others get what is granted to them."""


class AllowedKey(Record, frozen=True, kw_only=True):
    """One key that servers let in."""

    public: PublicKey
    node: NodeId
    """The only node that may join with it; an admin's and a client's are names."""
    role: KeyRole
    namespaces: list[str] = msgspec.field(default_factory=list)
    """Of a client: whose objects it may use, and nobody else's."""


class AllowedKeys(Message, frozen=True, kw_only=True):
    """Notice from the master: these keys and no others, after a join and whenever they change.

    The rest is for daemons that open each other's memory; each gets its own.
    """

    keys: list[AllowedKey] = msgspec.field(default_factory=list)
    own: bytes = b""
    """What this node checks others by, at its data port."""
    towards: dict[PublicKey, bytes] = msgspec.field(default_factory=dict)
    """What it proves itself with to others, by their keys: to all after a join, later to those that are new."""
    grants: bytes = b""
    """What its grants are signed with from now on; those of before open nothing any more."""
