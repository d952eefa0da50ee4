"""The key pair of a process, and the list of those it lets in. A public key is written as 64 hex digits."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from daemons.core.errors import ConfigError
from daemons.core.ids import PublicKey
from daemons.protocol.key import AllowedKey

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyPair:
    """CURVE: Curve25519. The secret is in no repr, so in no log."""

    public: PublicKey
    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> "KeyPair":
        return cls.of(z85.decode(zmq.curve_keypair()[1]))

    @classmethod
    def of(cls, secret: bytes) -> "KeyPair":
        """Raises ConfigError where it is none."""
        if len(secret) != SECRET_BYTES:
            raise ConfigError(f"a secret key has {SECRET_BYTES} bytes, this one {len(secret)}")
        public = zmq.curve_public(z85.encode(secret))
        return cls(PublicKey(z85.decode(public).hex()), secret)


class AllowedList:
    """Who is let in now. Loop thread only.

    A key that was taken off is remembered as revoked, so that connections to its owner end too.
    """

    def __init__(self) -> None:
        self._allowed: dict[str, AllowedKey] = {}
        self._revoked: dict[str, AllowedKey] = {}
        self.on_revoked: list[Callable[[], object]] = []
        """Called after keys were taken off."""

    def __len__(self) -> int:
        return len(self._allowed)

    def __iter__(self) -> Iterator[AllowedKey]:
        return iter(self._allowed.values())

    def find(self, key: str) -> AllowedKey | None:
        return self._allowed.get(key)

    def revoked(self, key: str) -> AllowedKey | None:
        """What it was."""
        return self._revoked.get(key)

    def replace(self, keys: Iterable[AllowedKey]) -> None:
        before = self._allowed
        self._allowed = {allowed.public: allowed for allowed in keys}
        gone = {key: was for key, was in before.items() if self._allowed.get(key) != was}
        known = self._revoked | gone
        self._revoked = {key: was for key, was in known.items() if key not in self._allowed}
        if gone:
            for callback in self.on_revoked:
                callback()


@dataclass(frozen=True, slots=True)
class Identity:
    """What a process is to its peers: its own keys, and whom its servers let in: at first nobody."""

    pair: KeyPair
    allowed: AllowedList = field(default_factory=AllowedList)


def use_keys(client: "zmq.Socket[bytes]", pair: KeyPair, server: PublicKey) -> None:
    """Before it connects: it talks to the owner of `server`, and to nobody who only has its address."""
    client.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
    client.setsockopt(zmq.CURVE_PUBLICKEY, bytes.fromhex(pair.public))
    client.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(server))
