from pathlib import Path

from daemons.core.units import KIB, MIB
from daemons.store.ssd.measure import measure_reads


def test_it_measures_both_sides_and_leaves_nothing(tmp_path: Path) -> None:
    measure = measure_reads(
        tmp_path, block_bytes=256 * KIB, total_bytes=4 * MIB, num_threads=2, rounds=1
    )
    assert measure.num_blocks == 16
    assert measure.tier_bytes_per_s > 0
    assert measure.plain_bytes_per_s > 0
    assert measure.ratio > 0
    assert not list(tmp_path.iterdir())
