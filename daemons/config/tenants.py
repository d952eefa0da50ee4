"""The tenants of gateways: their limits, hashes of their API keys, and prices. One file, replaced as a whole.

A key itself is shown once, when it is made; it has 256 random bits, so its hash needs no salt and no time.
"""

import hashlib
import secrets
from pathlib import Path
from typing import Annotated, Final

import msgspec

from daemons.config.base import Section, load_config
from daemons.config.key_files import NodeName, check_file, tables_text

Limit = Annotated[int, msgspec.Meta(ge=0)]
Price = Annotated[float, msgspec.Meta(ge=0)]

KEY_PREFIX: Final = "mc-"
ID_CHARS: Final = 8
MILLION: Final = 1_000_000


class Tenant(Section, frozen=True, kw_only=True):
    """One who pays. 0 is no limit."""

    name: NodeName
    requests_per_minute: Limit = 0
    tokens_per_minute: Limit = 0
    tokens_per_day: Limit = 0
    max_requests: Limit = 0
    """At once."""


class ApiKey(Section, frozen=True, kw_only=True):
    """`id` is the beginning of the key, by which its owner knows it. `revoked` is when, empty for one that is good."""

    tenant: NodeName
    id: str
    hash: Annotated[str, msgspec.Meta(extra={"form": "key"})]
    created: str = ""
    revoked: str = ""


class ModelPrice(Section, frozen=True, kw_only=True):
    """Of a million tokens, in whatever currency."""

    model: str
    prompt: Price = 0.0
    """Those that were computed."""
    cached: Price = 0.0
    """Those that were reused."""
    completion: Price = 0.0

    def cost(self, *, prompt: int, cached: int, completion: int) -> float:
        """`prompt` counts the cached ones, too."""
        parts = (
            (prompt - cached, self.prompt),
            (cached, self.cached),
            (completion, self.completion),
        )
        return sum(tokens * price for tokens, price in parts) / MILLION


class TenantFile(Section, frozen=True, kw_only=True):
    """tenants.toml"""

    tenant: list[Tenant] = msgspec.field(default_factory=list)
    key: list[ApiKey] = msgspec.field(default_factory=list)
    price: list[ModelPrice] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = {tenant.name for tenant in self.tenant}
        if len(names) < len(self.tenant):
            raise ValueError("a tenant stands in it twice")
        strangers = sorted({key.tenant for key in self.key} - names)
        if strangers:
            raise ValueError(f"there is a key of {strangers[0]}, but no such tenant")

    def find(self, name: str) -> Tenant | None:
        return next((tenant for tenant in self.tenant if tenant.name == name), None)


def read_tenants(path: Path) -> TenantFile:
    """Raises ConfigError."""
    check_file(path)
    return load_config(path, TenantFile, advice="mcctl tenant add makes it")


def tenants_text(tenants: TenantFile) -> str:
    return (
        "# Who may use the API of gateways; written by mcctl tenant. They read it again when it changes."
        + tables_text("tenant", tenants.tenant)
        + tables_text("key", tenants.key)
        + tables_text("price", tenants.price)
    )


def new_api_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_of(api_key: str) -> str:
    return hashlib.sha256(api_key.encode()).hexdigest()


def id_of(api_key: str) -> str:
    return api_key[: len(KEY_PREFIX) + ID_CHARS]
