"""Which failures are tried again, where, how often; and that a client never sees an answer change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.client.retry import GiveUp, Progress, Retry, failing_nodes
from daemons.core.errors import (
    Exhausted,
    McError,
    NotFound,
    ProtocolError,
    Rejected,
    TransferError,
    Unavailable,
)
from daemons.core.ids import HostId, Incarnation, NodeId, RequestId
from daemons.protocol.packed import BlockLocations
from daemons.protocol.request import InstanceAddress, Plan


def instance(node: str, port: int) -> InstanceAddress:
    return InstanceAddress(node=NodeId(node), control=f"tcp://h:{port}", host_id=HostId("h"))


PLAN = Plan(
    request_id=RequestId("r"),
    incarnation=Incarnation(1),
    prefill=instance("prefill", 1),
    decode=instance("decode", 2),
    matched=BlockLocations(),
    put_target=None,
    predicted_ttft_s=0.1,
)
GONE = Unavailable("tcp://h:2 closed the connection")


def failed(progress: Progress, error: McError, *, left_s: float = 60.0) -> Retry | GiveUp:
    return progress.after_failure(error, stage="generate", plan=PLAN, left_s=left_s)


def refused(progress: Progress, error: McError) -> Retry | GiveUp:
    return progress.after_failure(error, stage="schedule", plan=None, left_s=60.0)


def test_two_retries_before_the_first_token() -> None:
    progress = Progress(max_tokens=8)
    assert failed(progress, GONE) == Retry((NodeId("decode"),))
    assert failed(progress, GONE) == Retry((NodeId("decode"),))
    assert failed(progress, GONE) == GiveUp(GONE)
    assert progress.num_attempts == 3


def test_one_replay_after_it() -> None:
    progress = Progress(max_tokens=8)
    progress.accept([1])
    assert isinstance(failed(progress, GONE), Retry)
    progress.start_attempt()
    assert progress.accept([1, 2]) == [2]
    assert failed(progress, GONE) == GiveUp(GONE)


@pytest.mark.parametrize(
    "error", [Rejected("no"), NotFound("no"), ProtocolError("no"), McError("bug")]
)
def test_what_would_fail_again_is_not_tried_again(error: McError) -> None:
    assert failed(Progress(max_tokens=8), error) == GiveUp(error)


def test_no_attempt_is_begun_without_time_for_it() -> None:
    assert failed(Progress(max_tokens=8), GONE, left_s=0.1) == GiveUp(GONE)
    later = Exhausted("full", retry_after_ms=400)
    assert failed(Progress(max_tokens=8), later, left_s=0.5) == GiveUp(later)
    assert failed(Progress(max_tokens=8), later) == Retry((NodeId("decode"),), 0.4)


def test_a_refused_schedule_ends_it() -> None:
    error = Unavailable("no master")
    assert refused(Progress(max_tokens=8), error) == GiveUp(error)


def test_a_node_that_only_stumbled_is_asked_again_when_it_is_the_only_one() -> None:
    progress = Progress(max_tokens=8)
    failed(progress, TransferError("no bytes"))
    assert refused(progress, Unavailable("no other node")) == Retry((), 0.05)
    assert isinstance(refused(progress, Unavailable("none")), GiveUp)


def test_a_dead_node_is_not_asked_again() -> None:
    progress = Progress(max_tokens=8)
    failed(progress, GONE)
    assert isinstance(refused(progress, Unavailable("no other node")), GiveUp)


@pytest.mark.parametrize(
    ("error", "node"),
    [
        (Unavailable("tcp://h:2 does not answer"), "decode"),
        (Unavailable("prefill node p: it is draining"), "prefill"),
        (Exhausted("decode node d has no room for this prefill"), "decode"),
        (TransferError("checksum"), "prefill"),
        (Exhausted("full"), "decode"),
        (Unavailable("tcp://h:1 closed the connection"), "prefill"),
    ],
)
def test_the_node_at_fault(error: McError, node: str) -> None:
    assert failing_nodes(error, PLAN) == (NodeId(node),)


def test_another_answer_is_refused() -> None:
    progress = Progress(max_tokens=8)
    progress.accept([1, 2])
    progress.start_attempt()
    with pytest.raises(ProtocolError, match="other tokens"):
        progress.accept([1, 3])


def test_a_shorter_answer_is_refused() -> None:
    progress = Progress(max_tokens=8)
    progress.accept([1, 2])
    progress.start_attempt()
    progress.accept([1])
    with pytest.raises(ProtocolError, match="fewer tokens"):
        progress.check_complete()


def test_more_than_max_tokens_is_refused() -> None:
    progress = Progress(max_tokens=2)
    with pytest.raises(ProtocolError, match="max_tokens=2"):
        progress.accept([1, 2, 3])


@given(
    answer=st.lists(st.integers(0, 9), max_size=30),
    attempts=st.lists(st.lists(st.integers(1, 5), max_size=10), max_size=4),
)
def test_any_deaths_deliver_the_answer_once(answer: list[int], attempts: list[list[int]]) -> None:
    progress, delivered = Progress(max_tokens=30), list[int]()
    for sizes in [*attempts, [1] * 30]:
        progress.start_attempt()
        position = 0
        for size in sizes:
            delivered += progress.accept(answer[position : position + size])
            position += size
    progress.check_complete()
    assert delivered == answer
