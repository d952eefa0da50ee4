"""Sections that several processes share."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from daemons.config.base import Section
from daemons.config.forms import MAX_PORT
from daemons.core.errors import ConfigError
from daemons.core.units import parse_size

Seconds = Annotated[float, msgspec.Meta(gt=0, extra={"form": "seconds"})]
Count = Annotated[int, msgspec.Meta(ge=1)]
Threads = Annotated[int, msgspec.Meta(ge=1, le=256)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Name = Annotated[str, msgspec.Meta(extra={"form": "name"})]
"""Of a node: part of file names, addresses and log lines."""
Port = Annotated[int, msgspec.Meta(ge=0, le=MAX_PORT)]
Listen = Annotated[str, msgspec.Meta(extra={"form": "listen"})]
"""Where a process's own server is."""
Told = Annotated[str, msgspec.Meta(extra={"form": "told"})]
"""The same, of a process whose peers learn it from the master: no wildcard."""
Endpoint = Annotated[str, msgspec.Meta(extra={"form": "endpoint"})]
"""Where a peer's is."""
Metrics = Annotated[str, msgspec.Meta(extra={"form": "host_port_or_empty"})]
Host = Annotated[str, msgspec.Meta(extra={"form": "host"})]
Directory = Annotated[str, msgspec.Meta(extra={"form": "path"})]
DirectoryOrNone = Annotated[str, msgspec.Meta(extra={"form": "path_or_empty"})]
Size = Annotated[str | int, msgspec.Meta(extra={"form": "size"})]
"""Bytes: a number, or text such as "512MiB"."""


def topology_file(section: "TransferSection") -> Path | None:
    """None where the host is taken at its word."""
    return Path(section.topology) if section.topology else None


def size_bytes(value: Size, key: str) -> int:
    """Raises ConfigError naming `key`."""
    try:
        size = parse_size(value)
    except ConfigError as error:
        raise ConfigError(f"`{key}`: {error.message}") from None
    if size <= 0:
        raise ConfigError(f"`{key}`: must be more than 0 bytes")
    return size


class LogSection(Section, frozen=True, kw_only=True):
    """How much a daemon says on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class MasterLinkSection(Section, frozen=True, kw_only=True):
    """Where the master is."""

    endpoint: Endpoint = "tcp://127.0.0.1:7700"


class SecuritySection(Section, frozen=True, kw_only=True):
    """By what this process and the master know each other; see mcctl keys in mcctl(1)."""

    key_file: str = ""
    """This process's own key, a NODE.key that mcctl keys generate wrote. A name without a slash is a credential of the
    unit, in $CREDENTIALS_DIRECTORY. Empty: no keys, on this host only."""
    master_key: Annotated[str, msgspec.Meta(extra={"form": "key_or_empty"})] = ""
    """The master's public key, as mcctl keys list shows it: nobody else is taken for the master."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.key_file) != bool(self.master_key):
            missing = "master_key" if self.key_file else "key_file"
            raise ValueError(f"`{missing}` is missing: key_file and master_key go together")


class MasterSecuritySection(Section, frozen=True, kw_only=True):
    """By what the master knows its nodes, and they know it; see mcctl keys in mcctl(1)."""

    key_file: str = ""
    """The master's own key, a NODE.key that mcctl keys generate wrote. A name without a slash is a credential of the
    unit, in $CREDENTIALS_DIRECTORY. Empty: no keys, on this host only."""
    authorized_file: str = ""
    """Who may connect, and as what: the file that mcctl keys authorize and revoke write. Read again when it changes;
    the nodes learn it from the master at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.key_file) != bool(self.authorized_file):
            missing = "authorized_file" if self.key_file else "key_file"
            raise ValueError(f"`{missing}` is missing: key_file and authorized_file go together")


class TransferSection(Section, frozen=True, kw_only=True):
    """Data paths. `host` is the address bound and told to others; `port` 0 takes a free one."""

    host: Annotated[str, msgspec.Meta(extra={"form": "own"})] = "127.0.0.1"
    more_hosts: Annotated[list[str], msgspec.Meta(extra={"form": "hosts"})] = msgspec.field(
        default_factory=list
    )
    """Addresses of further NICs, each on the same port, bound and told too: peers spread tcp transfers over all of
    them, and go on when some are lost."""
    port: Port = 0
    transports: Annotated[
        list[Literal["shm", "tcp", "rdma"]], msgspec.Meta(extra={"form": "transports"})
    ] = msgspec.field(default_factory=lambda: ["shm", "tcp"])
    unix_dir: str = ""
    """Directory of the UNIX socket for peers on this host; empty for a private one under /tmp or $RUNTIME_DIRECTORY."""
    secret_file: str = ""
    """Without keys (security.key_file): file with a secret that daemons of one cluster share, the same on all. Who does
    not know it reads only what was granted. A name without a slash is a credential of the unit. Empty: on this host
    processes of the same user trust each other, and TCP asks for nothing. With keys it is not used: each node has keys
    for its data port from the master, until it is revoked."""
    topology: str = ""
    """TOML file that corrects what this host says of its NICs and RDMA devices: node, speed, which to prefer or ignore.
    Empty: what it says."""
    timeout_s: Seconds = 10.0
    """A transfer that takes longer has failed: one block put, the KV of some layers, a reused prefix."""


class ModelSection(Section, frozen=True, kw_only=True):
    """The model an instance serves."""

    path: Directory
    """A Hugging Face directory: config.json, *.safetensors, tokenizer.json."""
    name: str = ""
    """What clients call it; empty for the directory's name."""


class EngineSection(Section, frozen=True, kw_only=True):
    """How an instance computes. Instances share KV only when dtype, block_tokens and threads are equal."""

    kind: Literal["torch", "paced"] = "torch"
    """torch runs the model. paced is for rehearsals: it takes the times that `profile` states and answers nonsense; of
    model.path it reads config.json alone."""
    profile: str = "a800x8-llama-70b"
    """Of a paced engine: a hardware profile of mcctl simulate by name, or its TOML file."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Of weights and KV. auto is bfloat16, but float32 on a CPU that has no instructions for it: there it would be
    several times as slow."""
    device: Annotated[str, msgspec.Meta(extra={"form": "device"})] = "cpu"
    threads: Threads = 1
    block_tokens: Literal[16, 32, 64, 128, 256] = 64
    kv_memory: Size = "2GiB"
    """KV arena of this instance: room for all tokens that it has at once. mc-deploy(7) says how much to give."""
    max_sequences: Count = 256
    draft_tokens: Annotated[int, msgspec.Meta(ge=0, le=15)] = 15
    """Of a decode instance: tokens of one sequence that a step may guess from its own words and try at once, where
    that pays. Answers are the same, token by token. 0 guesses none."""
