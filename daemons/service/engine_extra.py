"""Where the package was installed without its [engine] extra, a process that computes says so in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from daemons.core.errors import ConfigError

_EXTRA: Final = ("torch", "safetensors")


@contextmanager
def engine_extra() -> Iterator[None]:
    """Around imports of `daemons.engine`. Raises ConfigError when the extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise ConfigError(
            f"{error.name} is not installed; pip install 'mooncake-mc[engine]' into this environment"
        ) from None
