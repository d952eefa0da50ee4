"""An operator's own key, for tools that talk to a cluster with keys."""

from collections.abc import Sequence
from pathlib import Path

from daemons.config.key_files import KeyFile, read_key_file
from daemons.core.errors import ConfigError
from daemons.core.ids import NodeId, PublicKey
from daemons.protocol.key import KeyRole
from daemons.rpc import Identity, KeyPair


def open_client_identity(key_file: str | Path | None) -> Identity | None:
    """None without a file. Raises ConfigError."""
    if key_file is None:
        return None
    found = read_key_file(Path(key_file))
    if not found.secret:
        raise ConfigError(f"{key_file} has no secret; take NAME.key, not NAME.pub")
    return Identity(KeyPair.of(bytes.fromhex(found.secret)))


def new_key(node: NodeId, role: KeyRole, namespaces: Sequence[str] = ()) -> KeyFile:
    """A pair that nobody has had. Raises ValueError for a client without namespaces."""
    pair = KeyPair.generate()
    return KeyFile(
        node=node,
        role=role,
        public=PublicKey(pair.public),
        secret=pair.secret.hex(),
        namespaces=list(namespaces),
    )
