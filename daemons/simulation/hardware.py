"""What one instance of a kind of machine takes for its work: read from a TOML file, or one that comes with us."""

from importlib import resources
from pathlib import Path

import msgspec
import tomli

from daemons.conductor.latency import CostModel
from daemons.config.base import NO_TOML
from daemons.core.errors import ConfigError
from daemons.protocol.block import Tier

DEFAULT = "a800x8-llama-70b"
_FOLDER = "hardware_profiles"
_LEAST, _MOST = 1e-15, 1e18
"""Beyond, nothing is meant, and sums lose what is added to them."""


class PrefillTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`fixed_s` + `token_s` a new token + `token_context_s` a new token and token before it."""

    fixed_s: float
    token_s: float
    token_context_s: float


class DecodeTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one step of the whole batch."""

    step_s: float
    context_token_s: float
    sequence_s: float


class KvSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one instance: what its devices hold, and what DRAM it lends to the pool."""

    bytes_per_token: int
    num_layers: int
    device_tokens: int
    dram_tokens: int


class Bandwidth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes per second."""

    load: float
    network: float


class StorageRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes per second, and what one read takes before its first byte."""

    read: float
    write: float
    latency_s: float


class HardwareProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One instance of one model on one kind of machine."""

    prefill: PrefillTimes
    decode: DecodeTimes
    kv: KvSizes
    bandwidth: Bandwidth
    ssd: StorageRates = StorageRates(12e9, 8e9, 1e-4)
    """Of one node: two or three NVMe drives."""
    object: StorageRates = StorageRates(10e9, 10e9, 0.03)
    """Of the whole object store: behind one link of 100 Gbit/s."""

    @property
    def prompt_s(self) -> float:
        """What a whole prompt costs once."""
        return self.prefill.fixed_s

    def prefill_s(self, num_tokens: int, num_cached: int) -> float:
        """Compute of a prompt of which so many tokens are reused; at least one token is computed."""
        return self.cost_model().prefill_s(num_tokens, num_cached)

    def chunk_s(self, start: int, num_tokens: int) -> float:
        """The share of tokens [start, start + num_tokens), without what a whole prompt costs once."""
        times = self.prefill
        return num_tokens * (times.token_s + times.token_context_s * (start + num_tokens / 2))

    def step_s(self, num_sequences: int, num_context_tokens: float) -> float:
        """One decode step."""
        times = self.decode
        return (
            times.step_s
            + times.context_token_s * num_context_tokens
            + times.sequence_s * (num_sequences - 1)
        )

    def load_s(self, num_tokens: int) -> float:
        """KV of so many tokens from host memory into the devices."""
        return num_tokens * self.kv.bytes_per_token / self.bandwidth.load

    def network_s(self, num_tokens: int) -> float:
        """KV of so many tokens over an idle link."""
        return num_tokens * self.kv.bytes_per_token / self.bandwidth.network

    def with_step_s(self, step_s: float) -> "HardwareProfile":
        """The same with another time of a decode step."""
        decode = msgspec.structs.replace(self.decode, step_s=step_s)
        return msgspec.structs.replace(self, decode=decode)

    def storage_rates(self, tier: Tier) -> StorageRates:
        """Of a tier below DRAM."""
        return self.ssd if tier == "ssd" else self.object

    def cost_model(self) -> CostModel:
        """The same as the Conductor is told by an instance that has measured itself."""
        load_token_s = self.load_s(1)
        return CostModel(
            fixed_s=self.prefill.fixed_s,
            token_s=self.prefill.token_s,
            token_context_s=self.prefill.token_context_s,
            step_s=self.decode.step_s,
            load_token_s=load_token_s,
            remote_load_factor=1 + self.network_s(1) / load_token_s,
            sequence_s=self.decode.sequence_s,
            context_token_s=self.decode.context_token_s,
            is_guess=False,
        )


def find_profile(name: str) -> HardwareProfile:
    """By the name of one that comes with us, or by path. Raises ConfigError."""
    if name in profile_names():
        text = (resources.files(__package__) / _FOLDER / f"{name}.toml").read_text()
        return parse_profile(text, name)
    path = Path(name)
    try:
        return parse_profile(path.read_text(), name)
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text"
        known = ", ".join(profile_names())
        raise ConfigError(
            f"no hardware profile {name!r}: it is none of those that come along ({known}), and no file to read: "
            f"{why.lower()}"
        ) from error


def profile_names() -> list[str]:
    folder = resources.files(__package__) / _FOLDER
    return sorted(
        file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")
    )


def parse_profile(text: str, where: str) -> HardwareProfile:
    """Raises ConfigError for a missing or unknown key and for a number that is no duration or size."""
    try:
        profile = msgspec.convert(tomli.loads(text), HardwareProfile, strict=False)
    except NO_TOML as error:
        raise ConfigError(f"hardware profile {where}: {error}") from error
    storage = (profile.ssd, profile.object)
    for section in (profile.prefill, profile.decode, profile.kv, profile.bandwidth, *storage):
        for key, value in msgspec.structs.asdict(section).items():
            may_be_zero = section in (profile.prefill, profile.decode)
            if not (_LEAST <= value <= _MOST or (may_be_zero and value == 0)):
                raise ConfigError(
                    f"hardware profile {where}: `{key}` is {value}, too small or large"
                )
    if profile.decode.step_s <= 0 or profile.prefill.token_s <= 0:
        raise ConfigError(f"hardware profile {where}: `step_s` and `token_s` are above zero")
    return profile
