"""Keys of data ports: what each daemon checks others by, proves itself with to them, and signs grants with.

Derived from the master's own key, so that the next one gives out the same, and told only over connections that
proved the key of a daemon. Grants have another key after each revocation: those of before open nothing any more.
"""

import hashlib
import secrets
from collections.abc import Collection, Iterable
from typing import Final

from daemons.core.ids import PublicKey
from daemons.protocol.key import DATA_ROLES, AllowedKey, AllowedKeys
from daemons.transfer.credentials import grant_key, owner_key, pair_key

_LABEL: Final = b"data root"
_SALT_BYTES: Final = 16


class DataKeys:
    """Loop thread only."""

    def __init__(self, secret: bytes) -> None:
        self._root = hashlib.blake2b(key=secret, person=_LABEL, digest_size=32).digest()
        self._owners: dict[str, bytes] = {}
        self._salt = secrets.token_bytes(_SALT_BYTES)

    def renew_grants(self) -> None:
        """Somebody may hold some who is not to read any more."""
        self._salt = secrets.token_bytes(_SALT_BYTES)

    def grant_key(self, owner: str) -> bytes:
        return grant_key(self._owner(owner), self._salt)

    def message(
        self, listed: Iterable[AllowedKey], to: AllowedKey, fresh: Collection[str] | None = None
    ) -> AllowedKeys:
        """For one member. `fresh` are the keys that it was not told of before; None: all of them."""
        keys = list(listed)
        if to.role not in DATA_ROLES:
            return AllowedKeys(keys=keys)
        me = bytes.fromhex(to.public)
        return AllowedKeys(
            keys=keys,
            own=self._owner(to.public),
            towards={
                PublicKey(key.public): pair_key(self._owner(key.public), me)
                for key in keys
                if key.role in DATA_ROLES and (fresh is None or key.public in fresh)
            },
            grants=self.grant_key(to.public),
        )

    def _owner(self, public: str) -> bytes:
        key = self._owners.get(public)
        if key is None:
            key = self._owners[public] = owner_key(self._root, bytes.fromhex(public))
        return key
