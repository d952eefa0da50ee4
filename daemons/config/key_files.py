"""Files of `mcctl keys`: a node's own key pair, and the list of those that may connect. TOML, replaced as a whole.

The list is the master's; it tells the nodes. Whoever writes one holds the lock beside it.
"""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from daemons.config.base import MAX_FILE_BYTES, Section, load_config
from daemons.core.errors import ConfigError
from daemons.core.ids import NodeId, PublicKey
from daemons.protocol.key import AllowedKey, KeyRole

Hex32 = Annotated[str, msgspec.Meta(extra={"form": "key"})]
NodeName = Annotated[str, msgspec.Meta(extra={"form": "name"})]

MAX_NAMESPACE_BYTES: Final = 256


class KeyFile(Section, frozen=True, kw_only=True):
    """One key pair. Only its owner may read it. Of a `.pub` file: without the secret."""

    node: NodeName
    role: KeyRole
    public: Hex32
    secret: Annotated[str, msgspec.Meta(extra={"form": "key_or_empty"})] = ""
    namespaces: list[str] = msgspec.field(default_factory=list)
    """Of a client's: whose objects it may use."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_namespaces(self.role, self.namespaces)


class ListedKey(Section, frozen=True, kw_only=True):
    """A line of the list. `revoked` is when, and empty for a key that is let in."""

    node: NodeName
    role: KeyRole
    public: Hex32
    added: str = ""
    revoked: str = ""
    namespaces: list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_namespaces(self.role, self.namespaces)


class KeyList(Section, frozen=True, kw_only=True):
    """authorized.toml"""

    key: list[ListedKey] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [key.public for key in self.key]
        if len(set(names)) < len(names):
            raise ValueError("a public key stands in it twice; each is one node's")

    def allowed(self) -> list[AllowedKey]:
        return [
            AllowedKey(
                public=PublicKey(key.public),
                node=NodeId(key.node),
                role=key.role,
                namespaces=key.namespaces,
            )
            for key in self.key
            if not key.revoked
        ]


def check_namespaces(role: KeyRole, namespaces: Sequence[str]) -> None:
    """Raises ValueError."""
    if (role == "client") != bool(namespaces):
        raise ValueError("`namespaces`: a client has one or more, and nobody else has any")
    if any(len(namespace.encode()) > MAX_NAMESPACE_BYTES for namespace in namespaces):
        raise ValueError(f"`namespaces`: each has at most {MAX_NAMESPACE_BYTES} bytes")


def read_key_file(path: Path) -> KeyFile:
    """Raises ConfigError, also for a secret that others may read."""
    found = load_config(
        path, KeyFile, advice="mcctl keys generate makes keys, NODE.key and NODE.pub"
    )
    if found.secret and path.stat().st_mode & 0o007:
        raise ConfigError(f"{path} holds a secret key and is open to everyone; chmod 600 it")
    return found


def read_own_key(path: Path, node: str, role: KeyRole) -> KeyFile:
    """With its secret. Raises ConfigError for one that cannot be read, or is another node's."""
    found = read_key_file(path)
    if (found.node, found.role) != (node, role):
        raise ConfigError(
            f"`security.key_file`: {path} is the key of {found.role} {found.node}, this is {role} {node}; "
            "put right `node.id`, or take the key that mcctl keys generate made for it"
        )
    if not found.secret:
        raise ConfigError(f"`security.key_file`: {path} has no secret; take NODE.key, not NODE.pub")
    return found


def read_key_list(path: Path, *, may_be_missing: bool = False) -> KeyList:
    """Raises ConfigError."""
    if may_be_missing and not path.exists():
        return KeyList()
    check_file(path)
    return load_config(path, KeyList, advice="nobody has a key yet; mcctl keys authorize writes it")


def check_file(path: Path) -> None:
    """Of one that a daemon reads while it serves: a pipe would hold it up, a device has no end. Raises ConfigError."""
    with contextlib.suppress(OSError):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is no file of at most {MAX_FILE_BYTES} bytes")


def key_text(key: KeyFile) -> str:
    head = "secret: who has it is this node" if key.secret else "public"
    lines = [f"# {head}; written by mcctl keys"]
    values = [(name, getattr(key, name)) for name in key.__struct_fields__]
    return (
        "\n".join(lines + [f"{name} = {json.dumps(value)}" for name, value in values if value])
        + "\n"
    )


def key_list_text(keys: KeyList) -> str:
    text = "# Who may connect, and as what; written by mcctl keys. The master reads it again when it changes.\n"
    return text + tables_text("key", keys.key)


def tables_text(name: str, rows: Sequence[msgspec.Struct]) -> str:
    """[[name]] tables of flat values: JSON's texts, numbers, booleans and lists of texts are TOML's too."""
    lines: list[str] = []
    for row in rows:
        lines += ["", f"[[{name}]]"]
        values = {field: getattr(row, field) for field in row.__struct_fields__}
        lines += [
            f"{field} = {json.dumps(value)}"
            for field, value in values.items()
            if value not in ("", [])
        ]
    return "\n".join(lines) + "\n"


def write_whole(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Whole or not at all, with the owner of what was there before. Raises ConfigError."""
    try:
        before = path.stat() if path.exists() else None
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode) if before else mode)
                if before is not None and os.geteuid() == 0:
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
            _sync(path.parent)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def _sync(directory: Path) -> None:
    """A key that was revoked stays so, whenever the power fails."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
