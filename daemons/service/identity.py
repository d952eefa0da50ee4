"""A daemon's own keys from its config, and the list of others that it has from the master."""

import logging

from daemons.config.common import SecuritySection
from daemons.config.key_files import read_own_key
from daemons.config.secret import credential_path, read_secret
from daemons.core.errors import ConfigError
from daemons.core.ids import NodeId, PublicKey
from daemons.protocol.address import with_key
from daemons.protocol.key import KeyRole
from daemons.rpc import Identity, KeyPair
from daemons.transfer.credentials import NodeKeys

log = logging.getLogger(__name__)


def open_identity(key_file: str, *, node: NodeId, role: KeyRole) -> Identity | None:
    """None without a file. Raises ConfigError for one that cannot be read, or is another node's."""
    if not key_file:
        return None
    found = read_own_key(credential_path(key_file, "security.key_file"), node, role)
    pair = KeyPair.of(bytes.fromhex(found.secret))
    if pair.public != found.public:
        raise ConfigError(f"`security.key_file`: in {key_file} the two keys are no pair")
    return Identity(pair)


def data_secret(
    identity: Identity | None, path: str, key: str = "transfer.secret_file"
) -> bytes | None:
    """What the data port goes by where there are no keys; with keys, by those: who is put out still has the secret."""
    if identity is None:
        return read_secret(path, key)
    if path:
        log.warning("%s is not used: with keys the master gives each node its own", key)
    return None


def data_keys(identity: Identity | None) -> NodeKeys | None:
    """Empty: the master fills them."""
    return NodeKeys(identity.pair.public) if identity is not None else None


def master_endpoint(endpoint: str, security: SecuritySection) -> str:
    """With the key by which a node knows its master."""
    return with_key(endpoint, PublicKey(security.master_key) if security.master_key else None)
