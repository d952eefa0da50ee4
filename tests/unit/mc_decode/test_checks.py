"""What an instance can never serve is refused for good; what another may serve is sent there."""

from collections.abc import Iterator

import pytest
from kit.decode_bench import Bench

from daemons.core.errors import Rejected, Unavailable
from daemons.protocol.request import SamplingParams

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def is_free(bench: Bench) -> bool:
    return bench.requests.num_live == 0 and bench.instance.arena.num_live == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": []},
        {"tokens": [100]},
        {"tokens": [-1]},
        {"sampling": SamplingParams(max_tokens=0)},
        {"sampling": SamplingParams(max_tokens=413)},
    ],
)
def test_impossible_request_is_refused_for_good(bench: Bench, changes: dict[str, object]) -> None:
    answer = bench.ask(**changes)
    bench.until(lambda: answer.end)
    assert isinstance(answer.error, Rejected)
    assert is_free(bench)


def test_request_for_other_weights_goes_elsewhere(bench: Bench) -> None:
    other = bench.ask(namespace=b"o" * 16)
    bench.until(lambda: other.end)
    assert "plan again" in other.error.message
    assert isinstance(other.error, Unavailable)
    assert is_free(bench)
