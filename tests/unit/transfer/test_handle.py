"""What was submitted ends once, and says how, whoever ends it."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from daemons.core.errors import Exhausted, TransferError, Unavailable
from daemons.core.ids import Epoch, HostId
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.transfer import Cancelled, Read, ReadBatch, WriteBatch, contiguous, handle
from daemons.transfer.handle import Submissions

ADDRESS = DataAddress(host_id=HostId("h"), unix_path="", tcp="127.0.0.1:1", epoch=Epoch(1))
REGION = RegionRef(address=ADDRESS, region_id=1, size_bytes=64)
SOON_S = 20.0


class Gate:
    """A transfer that goes on when it is told to, and may then fail."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.error: Exception | None = None
        self.num_run = 0

    def run(self, batch: ReadBatch | WriteBatch) -> None:
        self.num_run += 1
        assert self.opened.wait(SOON_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def submissions(gate: Gate) -> Iterator[Submissions]:
    found = Submissions(gate.run)
    yield found
    gate.opened.set()
    found.close()


def batch() -> list[ReadBatch | WriteBatch]:
    return [ReadBatch(REGION, [Read.into(contiguous(0, 8), np.zeros(8, np.uint8))])]


def test_what_waits_for_a_thread_is_cancelled_at_once(submissions: Submissions, gate: Gate) -> None:
    running = [submissions.submit(batch()) for _ in range(4)]
    waiting = submissions.submit(batch())
    assert waiting.slices() == [("waiting", 0, 8)]
    waiting.cancel()
    with pytest.raises(Cancelled):
        waiting.wait(SOON_S)
    assert waiting.is_over
    assert waiting.slices() == [("cancelled", 0, 8)]
    gate.opened.set()
    for each in running:
        each.wait(SOON_S)
        assert each.slices() == [("done", 8, 8)]
    assert gate.num_run == 4


def test_what_had_not_begun_when_its_engine_closed_says_so(
    submissions: Submissions, gate: Gate
) -> None:
    running = [submissions.submit(batch()) for _ in range(4)]
    waiting = submissions.submit(batch())
    closing = threading.Thread(target=submissions.close)
    closing.start()
    with pytest.raises(Cancelled):
        waiting.wait(SOON_S)
    gate.opened.set()
    closing.join(SOON_S)
    for each in running:
        each.wait(SOON_S)
    assert waiting.fence(0.0)
    with pytest.raises(Unavailable, match="closed"):
        submissions.submit(batch())


def test_no_more_are_taken_than_there_is_room_for(
    submissions: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "_MAX_SUBMITTED", 6)
    taken = [submissions.submit(batch()) for _ in range(6)]
    with pytest.raises(Exhausted, match="wait for some"):
        submissions.submit(batch())
    taken[-1].cancel()
    submissions.submit(batch())


@pytest.mark.parametrize("error", [TransferError("no"), ValueError("a callback of the caller's")])
def test_whatever_is_raised_the_slices_have_failed(
    submissions: Submissions, gate: Gate, error: Exception
) -> None:
    gate.error = error
    gate.opened.set()
    failed = submissions.submit([*batch(), *batch()])
    with pytest.raises(type(error)):
        failed.wait(SOON_S)
    assert {state for state, _, _ in failed.slices()} == {"failed"}
