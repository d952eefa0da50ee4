"""How much of the pool each tenant may hold: admin state of this master, a small file that outlives it."""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from daemons.core.errors import ConfigError, Exhausted
from daemons.service.paths import read_state, write_durably

_FILE: Final = "pool_quotas.json"
_decode = msgspec.json.Decoder(dict[str, Annotated[int, msgspec.Meta(gt=0, lt=1 << 62)]]).decode


class QuotaFile:
    """Raises ConfigError where the file cannot be read: nobody's quota ends because of that."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._quotas = _read(self._path)

    @property
    def quotas(self) -> dict[str, int]:
        """Bytes by tenant; who is not in it has none."""
        return self._quotas

    def set(self, tenant: str, num_bytes: int) -> None:
        """On disk before it returns; 0 ends it. Raises Exhausted when it cannot be written."""
        changed = {name: limit for name, limit in self._quotas.items() if name != tenant}
        if num_bytes:
            changed[tenant] = num_bytes
        if changed == self._quotas:
            return
        try:
            write_durably(self._path, msgspec.json.encode(changed, order="sorted") + b"\n")
        except OSError as error:
            raise Exhausted(
                f"{self._path}: cannot be written: {error.strerror}; nothing was changed"
            ) from None
        self._quotas = changed


def _read(path: Path) -> dict[str, int]:
    try:
        return _decode(read_state(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: not the pool quotas of tenants ({error}); correct or remove it"
        ) from None
