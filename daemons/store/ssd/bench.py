"""The process behind `mcctl bench ssd`: measures a directory's disk and prints what it found as one line of JSON."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from daemons.core.errors import McError
from daemons.core.units import MIB
from daemons.store.ssd.measure import measure_reads
from daemons.store.ssd.measure_opening import measure_opening


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 1 with the reason as the last line."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("directory", type=Path, help="of its own; what it writes it removes")
    parser.add_argument("--size", type=int, action="append", default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--total", type=int, default=128 * MIB)
    parser.add_argument("--blocks", type=int, default=20_000)
    arguments = parser.parse_args(argv)
    try:
        reads = [
            measure_reads(
                arguments.directory,
                block_bytes=size,
                total_bytes=max(arguments.total, 8 * size * arguments.threads),
                num_threads=arguments.threads,
            )
            for size in arguments.size
        ]
        opening = measure_opening(arguments.directory, num_blocks=arguments.blocks)
    except (McError, OSError) as error:
        sys.stdout.write(f"error: {error}\n")
        return 1
    sys.stdout.write(msgspec.json.encode({"reads": reads, "opening": opening}).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
