import threading

import pytest

from daemons.core.errors import Exhausted, Unavailable
from daemons.store.segment.copy_workers import CopyWorkers


def test_sources_take_turns_and_the_queue_is_bounded() -> None:
    workers = CopyWorkers(1, max_queued=6)
    gate, started, done, order = threading.Event(), threading.Event(), threading.Event(), []

    def hold() -> None:
        started.set()
        gate.wait(5)

    workers.submit("a", hold)
    assert started.wait(5)
    for number in range(3):
        workers.submit("a", lambda number=number: order.append(f"a{number}"))  # type: ignore[misc]
    workers.submit("b", lambda: order.append("b0"))
    with pytest.raises(Exhausted, match="5 blocks wait to be copied, the limit is 6") as caught:
        workers.submit("c", lambda: None, 2)
    assert caught.value.retry_after_ms
    workers.submit("b", done.set)
    gate.set()
    assert done.wait(5)
    workers.close()
    assert order[:2] == ["a0", "b0"]
    with pytest.raises(Unavailable):
        workers.submit("a", lambda: None)
