"""Keys of processes: who may connect, and as what."""

from typing import Final, Literal, get_args

import msgspec

from daemons.core.ids import NodeId, PublicKey
from daemons.protocol.base import Message, Record
from daemons.protocol.node import Role

KeyRole = Role | Literal["admin"]
"""What the owner of a key may be. An admin is an operator with mcctl."""
KEY_ROLES: Final[tuple[KeyRole, ...]] = (*get_args(Role), "admin")


class AllowedKey(Record, frozen=True, kw_only=True):
    """One key that servers let in."""

    public: PublicKey
    node: NodeId
    """The only node that may join with it; an admin's is a name."""
    role: KeyRole


class AllowedKeys(Message, frozen=True, kw_only=True):
    """Notice from the master: these keys and no others, after a join and whenever they change."""

    keys: list[AllowedKey] = msgspec.field(default_factory=list)
