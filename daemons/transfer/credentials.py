"""How daemons of one cluster know each other at their data ports: by a secret that all share, or by keys that the
master gave to each of them.

A proof is for one nonce at one address, so that whoever passes it on to another port has nothing. The address is what
both ends of a connection see of it: between daemons nothing may translate addresses.
"""

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from daemons.core.errors import ProtocolError
from daemons.core.ids import PublicKey
from daemons.protocol.key import DATA_ROLES, AllowedKeys

DATA_PORT: Final = b"mooncake data port"
RDMA_CONTROL: Final = b"mooncake rdma control"
KEY_BYTES: Final = 32


class Credential(Protocol):
    """By what a process proves to owners of memory that it is a daemon, and by what it checks that of others."""

    def shown(self) -> bytes:
        """What the owner says beside its nonce."""
        ...

    def prove(self, purpose: bytes, nonce: bytes, shown: bytes, place: bytes) -> bytes:
        """Raises ProtocolError where this process has nothing to prove it with."""
        ...

    def verify(self, purpose: bytes, nonce: bytes, proof: bytes, place: bytes) -> str | None:
        """Who it is, "" for one that knows the secret; None for nobody."""
        ...

    def admits(self, public: str) -> bool:
        """Whether one that `verify` knew is still let in."""
        ...


@dataclass(frozen=True, slots=True)
class SharedSecret:
    """The same bytes on all hosts: transfer.secret_file. Who has them stays in until all have others."""

    secret: bytes = field(repr=False)

    def shown(self) -> bytes:
        return b""

    def prove(self, purpose: bytes, nonce: bytes, shown: bytes, place: bytes) -> bytes:
        return _proof(self.secret, purpose, nonce, place)

    def verify(self, purpose: bytes, nonce: bytes, proof: bytes, place: bytes) -> str | None:
        is_right = hmac.compare_digest(proof, _proof(self.secret, purpose, nonce, place))
        return "" if is_right else None

    def admits(self, public: str) -> bool:
        return True


@dataclass(slots=True)
class NodeKeys:
    """A daemon's own, for each pair of daemons another one; the master tells them over a connection that proved who
    this is. Tables are replaced whole, so any thread may look.

    Until the master has told them nobody is let in, and nobody is asked.
    """

    public: PublicKey
    _own: bytes = field(default=b"", repr=False)
    _towards: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """By the owner that the proof is for."""
    _admitted: frozenset[str] = frozenset()

    def replace(self, told: AllowedKeys) -> None:
        """Those of owners that were told before stay, unless they are not on the list any more."""
        listed = {key.public for key in told.keys if key.role in DATA_ROLES}
        towards: dict[str, bytes] = dict(self._towards) | {
            str(o): k for o, k in told.towards.items()
        }
        self._own = told.own
        self._towards = {owner: key for owner, key in towards.items() if owner in listed}
        self._admitted = frozenset(listed) if told.own else frozenset()

    def shown(self) -> bytes:
        return bytes.fromhex(self.public)

    def prove(self, purpose: bytes, nonce: bytes, shown: bytes, place: bytes) -> bytes:
        me = bytes.fromhex(self.public)
        if not shown:
            return me + bytes(KEY_BYTES)  # it wants no proof, and gets none to show around
        key = self._towards.get(shown.hex())
        if key is None:
            raise ProtocolError(
                "the master gave no data key for it: it is not authorized, or this node is not"
            )
        return me + _proof(key, purpose, nonce, place)

    def verify(self, purpose: bytes, nonce: bytes, proof: bytes, place: bytes) -> str | None:
        public = proof[:KEY_BYTES]
        if public.hex() not in self._admitted:
            return None
        key = pair_key(self._own, public)
        is_right = hmac.compare_digest(proof[KEY_BYTES:], _proof(key, purpose, nonce, place))
        return public.hex() if is_right else None

    def admits(self, public: str) -> bool:
        return public in self._admitted


def credential_of(secret: bytes | None, keys: NodeKeys | None) -> Credential | None:
    """Never both: a node that is put out still knows the secret."""
    if keys is not None or secret is None:
        return keys
    return SharedSecret(secret)


def owner_key(root: bytes, owner: bytes) -> bytes:
    """What the daemon with this public key checks others by. `root` is the master's."""
    return _derive(root, b"data owner", owner)


def pair_key(owner: bytes, peer: bytes) -> bytes:
    """What the daemon with the public key `peer` proves itself with to the one that has `owner`."""
    return _derive(owner, b"data peer", peer)


def grant_key(owner: bytes, salt: bytes) -> bytes:
    """What grants of an owner are signed with, by the master and by itself, until there is another salt."""
    return _derive(owner, b"data grants", salt)


def place_of(sock: socket.socket, *, is_owner: bool) -> bytes:
    """Where the owner of a connection is, as both ends of it see it."""
    name = sock.getsockname() if is_owner else sock.getpeername()
    if not isinstance(name, tuple):
        return name.encode() if isinstance(name, str) else bytes(name)
    host = ipaddress.ip_address(str(name[0]).partition("%")[0])
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return f"{mapped or host} {name[1]}".encode()


def _proof(key: bytes, purpose: bytes, nonce: bytes, place: bytes) -> bytes:
    return hmac.digest(key, purpose + nonce + place, hashlib.sha256)


def _derive(key: bytes, label: bytes, value: bytes) -> bytes:
    return hashlib.blake2b(value, key=key, person=label, digest_size=KEY_BYTES).digest()
