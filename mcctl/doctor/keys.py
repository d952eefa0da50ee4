"""The files of mcctl keys and mcctl tenant that a config names: there, private, and of this very node."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from daemons.config.key_files import KeyFile, read_key_list, read_own_key
from daemons.config.tenants import read_tenants
from daemons.core.errors import ConfigError
from daemons.protocol.key import KEY_ROLES
from mcctl.doctor.finding import Finding

CREDENTIALS: Final = Path("/etc/credstore")
"""Where the units have theirs from; root's alone."""


def check_keys(
    path: Path, process: str, config: Any, credentials: Path = CREDENTIALS
) -> Iterator[Finding]:
    """A file that only others may read is passed over: root sees more."""
    yield from _check_tenants(path, config)
    security = config.security
    if not security.key_file:
        return
    key_file = Path(security.key_file)
    where = key_file if "/" in security.key_file else credentials / key_file
    try:
        role = next(role for role in KEY_ROLES if process == f"mc-{role}")
        key = read_own_key(where, config.node.id, role)
        _check_list(security, key)
    except PermissionError:
        return
    except ConfigError as error:
        if isinstance(error.__cause__ or error.__context__, PermissionError):
            return
        yield Finding(
            severity="error",
            area="keys",
            what=str(where),
            problem=f"{path}: {error.message}",
            fix=f"mcctl keys generate {config.node.id} --role {process.removeprefix('mc-')}, see mc-deploy(7)",
        )


def _check_tenants(path: Path, config: Any) -> Iterator[Finding]:
    section = getattr(config, "tenants", None)
    if section is None or not section.file:
        return
    try:
        read_tenants(Path(section.file))
    except ConfigError as error:
        yield Finding(
            severity="error",
            area="tenants",
            what=section.file,
            problem=f"`tenants.file` of {path}: {error.message}",
            fix=f"mcctl tenant add NAME --file {section.file}",
        )


def _check_list(security: Any, key: KeyFile) -> None:
    """Raises ConfigError."""
    if getattr(security, "authorized_file", ""):
        read_key_list(Path(security.authorized_file))
        return
    if security.master_key == key.public:
        raise ConfigError("`security.master_key` is this node's own key, not the master's")
