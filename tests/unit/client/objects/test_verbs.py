"""A call that asks several times has one time for all of them."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from daemons.client.objects.cache import Found, ObjectCache
from daemons.client.objects.format import Footer
from daemons.client.objects.reader import Place
from daemons.client.objects.steps import AskMaster, Pause, Steps, Work
from daemons.client.objects.verbs import ObjectVerbs
from daemons.core.clock import ManualClock
from daemons.core.errors import Unavailable
from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import DataAddress, RegionRef

TIMEOUT_S = 3.0
ADDRESS = DataAddress(host_id=HostId("h"), unix_path="/u", tcp="", epoch=Epoch(1))
LOCATION = BlockLocation(
    hash=BlockHash(b"k" * 16),
    node=NodeId("n"),
    region=RegionRef(address=ADDRESS, region_id=1, size_bytes=1 << 20),
    offset=0,
    length=100,
    trailer_bytes=64,
    version=7,
    seal_checksum=1,
    num_layers=1,
)


class Bench:
    """The master answers nothing in time, and whoever else is asked says how long it was given."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.cache = ObjectCache()
        self.given_s: list[float] = []
        self.verbs = ObjectVerbs(b"space", TIMEOUT_S, None, self, self)  # type: ignore[arg-type]

    def find(self, names: list[bytes], timeout_s: float, *, is_fresh: bool) -> Steps[list[Found]]:
        assert is_fresh
        self.given_s.append(timeout_s)
        yield Pause(timeout_s / 2)
        return [Found([Place(LOCATION)], 100, 1e9) for _ in names]

    def footer(self, found: Found, timeout_s: float) -> Footer:
        assert found.places
        self.given_s.append(timeout_s)
        self.clock.advance(timeout_s / 2)
        return Footer(100)

    def run(self, steps: Steps[Any]) -> Any:
        try:
            step = next(steps)
            while True:
                if isinstance(step, AskMaster):
                    self.clock.advance(step.timeout_s)
                    step = steps.send(Unavailable("no answer"))
                elif isinstance(step, Pause):
                    self.clock.advance(step.seconds)
                    step = steps.send(None)
                else:
                    assert isinstance(step, Work)
                    step = steps.send(step.call())
        except StopIteration as end:
            return end.value
        except Unavailable as error:
            return error


CALLS: dict[str, Callable[[ObjectVerbs], Steps[Any]]] = {
    "stat": lambda verbs: verbs.stat([b"a", b"b", b"c"]),
    "blocks_of": lambda verbs: verbs.blocks_of(b"a"),
    "pin": lambda verbs: verbs.pin(b"a", "soft"),
    "replicate": lambda verbs: verbs.replicate(b"a", 2, []),
    "move": lambda verbs: verbs.move(b"a", NodeId("n")),
    "page": lambda verbs: verbs.page(b"", 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_all_that_a_call_asks_ends_within_its_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(100.0)
    monkeypatch.setattr(time, "monotonic", clock)
    bench = Bench(clock)
    # Of our own, so that it is asked first whether the master has heard of it.
    bench.cache.put_own(b"a", Found([Place(LOCATION)], 100, 1e9))
    bench.run(CALLS[name](bench.verbs))
    assert clock() - 100.0 <= TIMEOUT_S + 0.5
    assert sorted(bench.given_s, reverse=True) == bench.given_s
    assert max(bench.given_s, default=0.0) <= TIMEOUT_S - 2.0
