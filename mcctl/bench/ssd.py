"""`mcctl bench ssd`: the SSD tier on a disk of this host, each figure beside a plain loop over the same disk.

Measured by a process of its own with the cache node's code, since that has no place in mcctl.
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from daemons.core.errors import ConfigError, Exhausted, Unavailable
from daemons.core.units import format_size

MIN_SIZE_BYTES: Final = 4096
MAX_SIZE_BYTES: Final = 256 * 1024 * 1024
_LIMIT_S: Final = 600.0
_DISK_SHARE: Final = 4
"""Of what is read: buckets, the plain file, and some."""


class SsdRow(msgspec.Struct, frozen=True, kw_only=True):
    """Medians; a GB is 10^9 bytes. `limit` is the plain loop's, in turns with ours."""

    what: str
    size_bytes: int
    threads: int
    value: float
    limit: float
    unit: str
    ratio: float


class SsdResult(msgspec.Struct, frozen=True, kw_only=True):
    """`is_direct`: the filesystem takes O_DIRECT; else the page cache answers."""

    is_direct: bool
    rows: list[SsdRow]


@dataclass(frozen=True, slots=True)
class SsdPlan:
    """What to measure."""

    directory: Path
    sizes: list[int]
    threads: int
    total_bytes: int
    num_blocks: int


class _Read(msgspec.Struct, frozen=True):
    block_bytes: int
    num_threads: int
    is_direct: bool
    tier_bytes_per_s: float
    plain_bytes_per_s: float


class _Opening(msgspec.Struct, frozen=True):
    tier_blocks_per_s: float
    plain_blocks_per_s: float


class _Measured(msgspec.Struct, frozen=True):
    reads: list[_Read]
    opening: _Opening


def run(plan: SsdPlan) -> SsdResult:
    """In a folder of its own in the directory, gone afterwards. Raises ConfigError, Exhausted, Unavailable."""
    try:
        free_bytes = shutil.disk_usage(plan.directory).free
        largest = max([plan.total_bytes, *(8 * size * plan.threads for size in plan.sizes)])
        if free_bytes < _DISK_SHARE * largest:
            raise Exhausted(
                f"{plan.directory} has {format_size(free_bytes)} left, "
                f"{format_size(_DISK_SHARE * largest)} are needed; give a smaller --total"
            )
        with tempfile.TemporaryDirectory(prefix="mcctl-bench-", dir=plan.directory) as scratch:
            return _result(_measure(plan, Path(scratch)))
    except OSError as error:
        raise ConfigError(
            f"cannot measure in {plan.directory}: {error.strerror or error}"
        ) from error


def _measure(plan: SsdPlan, scratch: Path) -> _Measured:
    command = [sys.executable, "-m", "daemons.store.ssd.bench", str(scratch)]
    command += [f"--size={size}" for size in plan.sizes]
    command += [f"--threads={plan.threads}", f"--total={plan.total_bytes}"]
    command.append(f"--blocks={plan.num_blocks}")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"the disk took longer than {_LIMIT_S:g} s; give a smaller --total"
        ) from None
    said = (done.stdout if not done.returncode else done.stdout or done.stderr).splitlines()
    last = said[-1] if said else "it said nothing"
    if done.returncode:
        raise Unavailable(f"the disk was not measured: {last.removeprefix('error: ')}")
    return msgspec.json.decode(last, type=_Measured)


def _result(measured: _Measured) -> SsdResult:
    rows = [
        SsdRow(
            what="read",
            size_bytes=read.block_bytes,
            threads=read.num_threads,
            value=read.tier_bytes_per_s / 1e9,
            limit=read.plain_bytes_per_s / 1e9,
            unit="GB/s",
            ratio=read.tier_bytes_per_s / read.plain_bytes_per_s,
        )
        for read in measured.reads
    ]
    opening = measured.opening
    rows.append(
        SsdRow(
            what="open",
            size_bytes=4096,
            threads=1,
            value=opening.tier_blocks_per_s,
            limit=opening.plain_blocks_per_s,
            unit="blocks/s",
            ratio=opening.tier_blocks_per_s / opening.plain_blocks_per_s,
        )
    )
    return SsdResult(is_direct=all(read.is_direct for read in measured.reads), rows=rows)
