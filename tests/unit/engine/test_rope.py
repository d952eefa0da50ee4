from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from daemons.engine.models.config import RopeConfig
from daemons.engine.models.rope import RopeTable, inverse_frequencies, rotate

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("parameters", "rope"),
    [
        (LLAMA3, RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)),
        (
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
            RopeConfig(1e4, "linear", 4.0),
        ),
    ],
)
def test_stretched_frequencies_equal_transformers(
    parameters: dict[str, Any], rope: RopeConfig
) -> None:
    config = transformers.LlamaConfig(
        hidden_size=512, num_attention_heads=4, rope_parameters=parameters
    )
    expected, _ = ROPE_INIT_FUNCTIONS[rope.kind](config, "cpu")
    torch.testing.assert_close(inverse_frequencies(rope, 128), expected, rtol=1e-6, atol=0)


def test_scores_depend_on_distance_only() -> None:
    table = RopeTable(RopeConfig(1e4), 8, 64, torch.zeros(1, dtype=torch.float64))
    q, k = torch.randn(2, 1, 1, 8, dtype=torch.float64)

    def at(x: torch.Tensor, position: int) -> torch.Tensor:
        return rotate(x, table.cos[[position]], table.sin[[position]])

    near, far = (at(q, p + 5) @ at(k, p).mT for p in (0, 40))
    torch.testing.assert_close(near, far, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(at(q, 0), q)
