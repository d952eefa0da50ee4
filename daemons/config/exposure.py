"""Addresses that other hosts reach, where nothing proves who calls: a daemon does not listen there unless told so."""

from collections.abc import Iterator
from dataclasses import dataclass

from daemons.config.base import Section
from daemons.core.errors import ConfigError
from daemons.protocol.address import is_loopback

_KEYS = "mcctl keys generate makes a key for `security.key_file`"
_SECRET = (
    "mcctl keys generate makes a key for `security.key_file`, "
    "openssl rand -hex 32 a secret for `transfer.secret_file`"
)
_TENANTS = (
    "mcctl tenant add and mcctl tenant key make tenants and their API keys for `tenants.file`"
)
_UNLESS = "or start it with --insecure, where everyone who reaches the address may do everything"


@dataclass(frozen=True, slots=True)
class Exposed:
    """One of them: the key it stands at, and what would make it safe."""

    key: str
    address: str
    remedy: str


def refuse_exposed(config: Section) -> None:
    """Raises ConfigError for the first such address."""
    for found in exposed(config):
        raise ConfigError(
            f"`{found.key}`: other hosts reach {found.address[:80]}, and nothing proves who they are: "
            f"{found.remedy}, {_UNLESS}"
        )


def exposed(config: Section) -> Iterator[Exposed]:
    """All of them. Those where only metrics are read are not."""
    security = getattr(config, "security", None)
    if security is not None and not security.key_file:
        for key in ("listen", "events"):
            address = getattr(getattr(config, "node", None), key, "")
            if address and not is_loopback(address):
                yield Exposed(f"node.{key}", address, _KEYS)
    http, tenants = getattr(config, "http", None), getattr(config, "tenants", None)
    if http is not None and not is_loopback(http.host) and not (tenants and tenants.file):
        yield Exposed("http.host", http.host, _TENANTS)
    transfer = getattr(config, "transfer", None)
    has_port = transfer is not None and {"tcp", "rdma"} & set(transfer.transports)
    is_guarded = bool(transfer and transfer.secret_file) or bool(security and security.key_file)
    if transfer is not None and has_port and not is_guarded:
        for address in (transfer.host, *transfer.more_hosts):
            if not is_loopback(address):
                yield Exposed("transfer.host", address, _SECRET)
