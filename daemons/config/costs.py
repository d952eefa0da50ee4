"""What instances cost before they have measured themselves: the file that conductor.costs_file names."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import msgspec
import tomli

from daemons.config.base import NO_TOML
from daemons.core.errors import ConfigError
from daemons.protocol.node import InstanceLoad

MAX_BYTES = 1 << 20
_Term = Annotated[float, msgspec.Meta(ge=0, lt=3600)]


class InstanceCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the instances whose id and model these patterns match, in seconds; 0: not known."""

    node: str = "*"
    model: str = "*"
    prefill_fixed_s: _Term = 0.0
    prefill_token_s: _Term = 0.0
    prefill_token_context_s: _Term = 0.0
    decode_fixed_s: _Term = 0.0
    decode_sequence_s: _Term = 0.0
    decode_context_token_s: _Term = 0.0
    load_token_s: _Term = 0.0

    def load(self) -> InstanceLoad:
        """As if the instance had said so itself."""
        return InstanceLoad(
            prefill_fixed_s=self.prefill_fixed_s,
            prefill_token_s=self.prefill_token_s,
            prefill_token_context_s=self.prefill_token_context_s,
            decode_fixed_s=self.decode_fixed_s,
            decode_sequence_s=self.decode_sequence_s,
            decode_context_token_s=self.decode_context_token_s,
            load_token_s=self.load_token_s,
        )


class CostsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[instance]]` tables; the first that matches counts."""

    instance: list[InstanceCosts] = msgspec.field(default_factory=list)

    def find(self, node: str, model: str) -> InstanceLoad | None:
        for costs in self.instance:
            if fnmatchcase(node, costs.node) and fnmatchcase(model, costs.model):
                return costs.load()
        return None


def read_costs(path: str) -> CostsFile:
    """Empty for no path. Raises ConfigError."""
    if not path:
        return CostsFile()
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError(f"`conductor.costs_file`: {path} is larger than {MAX_BYTES} bytes")
        return msgspec.convert(tomli.loads(raw.decode()), CostsFile, strict=False)
    except (OSError, *NO_TOML) as error:
        raise ConfigError(
            f"`conductor.costs_file`: {path}: {error}; `mcctl node costs` writes such a file"
        ) from error
