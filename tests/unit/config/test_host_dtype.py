from pathlib import Path

import pytest

from daemons.config.host_dtype import host_dtype

SERVER = "flags\t\t: fpu avx avx2 avx512f avx512dq avx512bw avx512vl avx512_bf16"
LAPTOP = "flags\t\t: fpu avx avx2 fma"
GRAVITON = "Features\t: fp asimd bf16 i8mm"


@pytest.mark.parametrize(
    ("line", "expected"),
    [(SERVER, "bfloat16"), (LAPTOP, "float32"), (GRAVITON, "bfloat16"), ("model\t: 1", "float32")],
)
def test_bfloat16_only_where_the_cpu_multiplies_it(
    tmp_path: Path, line: str, expected: str
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n\nprocessor\t: 1\n{line}\n")
    assert host_dtype(tmp_path / "cpuinfo") == expected


def test_a_cpu_that_says_nothing_takes_what_every_one_can(tmp_path: Path) -> None:
    assert host_dtype(tmp_path / "missing") == "float32"
