"""What would end a cache node of a local cluster in mid start, or make it useless: found before anything starts."""

import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from daemons.config.host_dtype import host_dtype
from daemons.config.segment_cut import SLOT_ALIGN, least_segment_bytes
from daemons.core.errors import ConfigError, Exhausted
from daemons.core.units import MIB, format_size, parse_size
from daemons.protocol.base import MALFORMED
from mcctl.cluster.plan import ClusterOptions
from mcctl.cluster.record import SEGMENTS

_BLOCK_TOKENS: Final = 64
_ELEMENT_BYTES: Final = {"bfloat16": 2, "float32": 4}


class _ModelShape(msgspec.Struct):
    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None


def check_segments(options: ClusterOptions) -> None:
    """Raises ConfigError for segments that cannot be used, Exhausted where there is no room for them."""
    _check_block_fits(options)
    wanted = parse_size(options.segment) * options.num_cachenodes
    if options.segment_directory is None:
        _check_room(SEGMENTS, wanted, "choose a smaller --segment")
        return
    _check_usable(options.segment_directory)
    # What an earlier cluster left there is taken over, or makes room.
    wanted -= _left_bytes(options.segment_directory)
    advice = "choose a smaller --segment, or mount a larger tmpfs there"
    _check_room(options.segment_directory, wanted, advice)


def _check_block_fits(options: ClusterOptions) -> None:
    block = _block_bytes(options)
    if block is None:
        return  # instances will say what is wrong with the model
    least = least_segment_bytes(block + SLOT_ALIGN)  # the trailer is less than a page
    if least is None:
        raise ConfigError(
            f"a block of {options.model.name} takes {format_size(block)}, more than a segment of any size takes: "
            "lower engine.block_tokens"
        )
    if parse_size(options.segment) < least:
        raise ConfigError(
            f"--segment {options.segment} holds no block of {options.model.name}: one takes {format_size(block)}; "
            f"give at least {-(-least // MIB)}MiB"
        )


def _block_bytes(options: ClusterOptions) -> int | None:
    try:
        text = (options.model / "config.json").read_bytes()
        shape = msgspec.json.decode(text, type=_ModelShape)
        heads = shape.num_key_value_heads or shape.num_attention_heads
        head_dim = shape.head_dim or shape.hidden_size // shape.num_attention_heads
    except (OSError, ZeroDivisionError, *MALFORMED):
        return None
    engine = options.overrides.get("prefill", {}).get("engine", {})
    tokens = engine.get("block_tokens", _BLOCK_TOKENS)
    if not isinstance(tokens, int):
        return None
    dtype = host_dtype() if options.dtype == "auto" else options.dtype
    row = heads * head_dim * _ELEMENT_BYTES.get(dtype, 2)
    return 2 * shape.num_hidden_layers * row * tokens


def _check_usable(directory: Path) -> None:
    """Cache nodes make it and a directory of this user in it."""
    mine = directory / f"mooncake-{os.getuid()}"
    there = next(path for path in (mine, *mine.parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"--segment-directory {directory}: {there} is no directory")
    if there == mine and mine.stat(follow_symlinks=False).st_uid != os.getuid():
        raise ConfigError(f"--segment-directory {directory}: {mine} belongs to somebody else")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"--segment-directory {directory}: nothing can be made in {there}; choose one that you may write to"
        )


def _left_bytes(directory: Path) -> int:
    found = (directory / f"mooncake-{os.getuid()}").glob("cachenode*")
    return sum(s.st_size for s in map(Path.lstat, found) if stat.S_ISREG(s.st_mode))


def _check_room(directory: Path, wanted: int, advice: str) -> None:
    there = next(path for path in (directory, *directory.parents) if path.exists())
    status = os.statvfs(there)
    free = status.f_bavail * status.f_frsize
    if wanted > free:
        raise Exhausted(
            f"{directory} has {format_size(free)} left, the segments need {format_size(wanted)}; {advice}"
        )
