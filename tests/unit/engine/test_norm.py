"""RMS normalisation, whose steps are to round as torch's own."""

import pytest
import torch
from torch.nn import functional

from daemons.engine.models.norm import RmsNorm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 64), (8, 64), (512, 96), (40, 3, 32)])
def test_a_norm_gives_the_bits_of_torchs_own(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = (3 * torch.randn(shape, generator=generator)).to(dtype)
    weight = torch.randn(shape[-1], generator=generator).to(dtype)
    before = x.clone()
    expected = functional.rms_norm(x, weight.shape, weight, 1e-5)
    assert torch.equal(RmsNorm(weight, 1e-5)(x), expected)
    assert torch.equal(x, before)
