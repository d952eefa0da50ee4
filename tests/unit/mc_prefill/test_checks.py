"""What an instance can never compute is refused for good; what another may compute is sent there."""

from collections.abc import Iterator

import pytest
from kit.prefill_jobs import Bench

from daemons.core.errors import Rejected, Unavailable
from daemons.protocol.packed import LOCATION_BYTES, BlockLocations
from daemons.protocol.prefix_hash import block_hashes


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loader.close()
    made.loop.close()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"tokens": []}, "0 prompt tokens; this instance takes 1.."),
        ({"tokens": [100] * 500}, "token ids must be in 0.."),
        ({"tokens": [2] * 500}, "hashes are not those of the prompt"),
        ({"hashes": block_hashes(b"other", [1] * 500, 64)}, "hashes are not those of the prompt"),
        ({"matched": BlockLocations(rows=bytes(LOCATION_BYTES))}, "matched blocks are not those"),
    ],
)
def test_a_prompt_that_is_impossible_or_under_names_of_others_is_refused(
    bench: Bench, more: dict[str, object], why: str
) -> None:
    with pytest.raises(Rejected, match=why):
        bench.admit(**more)
    assert bench.jobs.num_live == 0


def test_a_prompt_for_other_weights_goes_elsewhere(bench: Bench) -> None:
    with pytest.raises(Unavailable, match="plan again"):
        bench.admit(namespace=b"other")
