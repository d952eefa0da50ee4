"""Plans are asked for a few at a time; a burst is slow at worst, and a dead master fails all of it at once."""

from collections.abc import Iterator

import pytest
from kit.daemon import SLACK

from daemons.client.planning import Planner, Question
from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.core.ids import Incarnation, NodeId, RequestId
from daemons.protocol.base import Ok
from daemons.protocol.messages import Reply
from daemons.protocol.node import HelloReply
from daemons.protocol.request import Schedule
from daemons.rpc import Call, Channel, Loop, Server

pytestmark = pytest.mark.timeout(60)

WAIT_S = 15.0
"""Long for a busy machine, and less than what ends a question by itself."""


class Bench:
    """A master whose answers the test gives, over loopback TCP in one loop."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        self.loop = Loop()
        self.calls: list[Call] = []
        self.server: Server | None = Server(
            self.loop, "tcp://127.0.0.1:*", _hello, self.calls.append
        )
        self.channel = Channel(self.loop, self.server.endpoint)
        self.planner = Planner(self.channel, timeout_s, max_in_flight=2, max_waiting=3)

    def ask(self, number: int, left_s: float = 50.0) -> "Outcome":
        outcome = Outcome()
        message = Schedule(
            request_id=RequestId(f"r{number}"),
            model="m",
            num_prompt_tokens=1,
            max_tokens=1,
            hashes=[],
        )
        outcome.question = self.planner.ask(message, left_s=left_s, on_reply=outcome.replies.append)
        return outcome

    def wait_for_calls(self, count: int) -> None:
        assert self.loop.run_until(lambda: len(self.calls) >= count, WAIT_S)

    def kill_master(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def close(self) -> None:
        self.channel.close()
        self.kill_master()
        self.loop.close()


class Outcome:
    def __init__(self) -> None:
        self.replies: list[Reply | McError] = []
        self.question: Question | None = None


def _hello() -> HelloReply:
    return HelloReply(node=NodeId("master"), role="master", incarnation=Incarnation(1))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def asked(bench: Bench) -> list[str]:
    return [call.message.request_id for call in bench.calls]  # type: ignore[union-attr]


def test_few_are_asked_at_a_time_and_the_rest_in_order(bench: Bench) -> None:
    outcomes = [bench.ask(number) for number in range(5)]
    bench.wait_for_calls(2)
    bench.loop.run_until(lambda: False, 0.05)
    assert asked(bench) == ["r0", "r1"]
    assert bench.planner.num_waiting == 3
    for number in range(5):
        bench.wait_for_calls(number + 1)
        bench.calls[number].reply(Ok())
    assert bench.loop.run_until(lambda: all(outcome.replies for outcome in outcomes), WAIT_S)
    assert asked(bench) == [f"r{number}" for number in range(5)]
    assert [outcome.replies for outcome in outcomes] == [[Ok()]] * 5


def test_waiting_behind_others_is_not_the_masters_time() -> None:
    bench = Bench(timeout_s=2.0 * SLACK)
    try:
        outcomes = [bench.ask(number) for number in range(5)]
        for number in range(5):
            bench.wait_for_calls(number + 1)
            bench.loop.run_until(lambda: False, 0.6 * SLACK)
            bench.calls[number].reply(Ok())
        assert bench.loop.run_until(lambda: all(outcome.replies for outcome in outcomes), WAIT_S)
        assert [outcome.replies for outcome in outcomes] == [[Ok()]] * 5
    finally:
        bench.close()


def test_more_than_may_wait_are_refused_with_a_time(bench: Bench) -> None:
    for number in range(5):
        bench.ask(number)
    with pytest.raises(Exhausted) as caught:
        bench.ask(5)
    assert caught.value.retry_after_ms == 1000


def test_a_master_that_is_gone_fails_those_that_wait_too(bench: Bench) -> None:
    outcomes = [bench.ask(number) for number in range(5)]
    bench.wait_for_calls(2)
    bench.kill_master()
    assert bench.loop.run_until(lambda: all(outcome.replies for outcome in outcomes), WAIT_S)
    assert all(isinstance(outcome.replies[0], Unavailable) for outcome in outcomes)
    assert bench.planner.num_waiting == 0


def test_a_cancelled_question_makes_place_and_is_not_answered(bench: Bench) -> None:
    outcomes = [bench.ask(number) for number in range(4)]
    bench.wait_for_calls(2)
    for outcome in (outcomes[0], outcomes[3]):
        assert outcome.question is not None
        outcome.question.cancel()
    bench.wait_for_calls(3)
    assert asked(bench) == ["r0", "r1", "r2"]
    for call in bench.calls:
        call.reply(Ok())
    assert bench.loop.run_until(lambda: bool(outcomes[1].replies and outcomes[2].replies), WAIT_S)
    assert outcomes[0].replies == outcomes[3].replies == []


def test_a_request_whose_own_time_ends_while_it_waits_is_told(bench: Bench) -> None:
    for number in range(2):
        bench.ask(number)
    late = bench.ask(2, left_s=0.05)
    assert bench.loop.run_until(lambda: bool(late.replies), WAIT_S)
    assert "before it had a plan" in str(late.replies[0])
    assert bench.planner.num_waiting == 0
