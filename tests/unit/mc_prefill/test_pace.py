"""What an instance says of its own speed."""

from types import SimpleNamespace
from typing import cast

from daemons.client.prefix_load import PrefixLoad
from daemons.mc_prefill.pace import Pace


def load(num_blocks: int, elapsed_s: float) -> PrefixLoad:
    made = SimpleNamespace(num_blocks=num_blocks, block_tokens=64, elapsed_s=elapsed_s)
    return cast(PrefixLoad, made)


def test_the_fastest_of_the_latest_long_loads_is_told() -> None:
    pace = Pace()
    pace.loaded(load(7, 0.001))  # too short to say anything
    assert pace.load_token_s == 0.0
    for elapsed_s in (6.4, 0.64, 1.28):
        pace.loaded(load(10, elapsed_s))
    assert pace.load_token_s == 0.001
    for _ in range(8):
        pace.loaded(load(10, 1.28))
    assert pace.load_token_s == 0.002
