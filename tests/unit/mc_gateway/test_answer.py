"""Token streams to text and results: no sockets, the streams are fed by hand."""

import asyncio
from collections.abc import Iterable
from functools import partial

import pytest

from daemons.client.generate import GenerationEnd
from daemons.core.clock import ManualClock
from daemons.core.errors import McError, Unavailable
from daemons.core.ids import NodeId, RequestId
from daemons.mc_gateway.answer import Answer, Choice, Update
from daemons.mc_gateway.bridge import TokenStream
from daemons.mc_gateway.metrics import GatewayMetrics
from daemons.protocol.request import FinishReason, GenerateReply, Timing


class Letters:
    """Token n is the n-th letter, and the last one comes out late."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, tokens: Iterable[int]) -> str:
        text = self._held + "".join(chr(ord("a") + token) for token in tokens)
        self._held = text[-1:]
        return text[:-1]

    def finish(self) -> str:
        return self._held


class Running:
    """One answer, its streams and a clock."""

    def __init__(self, *stops: str, num_choices: int = 1) -> None:
        self.ready = asyncio.Event()
        self.clock = ManualClock(10.0)
        self.metrics = GatewayMetrics()
        self.streams = [TokenStream(self.ready) for _ in range(num_choices)]
        self.asked_to_stop: list[int] = []
        for index, stream in enumerate(self.streams):
            stream.attach(partial(self.asked_to_stop.append, index), list)
        choices = [Choice(stream, Letters(), stops, 5) for stream in self.streams]
        self.answer = Answer(
            choices, self.ready, metrics=self.metrics, clock=self.clock, began_s=10.0
        )

    def updates(self) -> list[Update]:
        async def collect() -> list[Update]:
            return [update async for updates in self.answer.updates() for update in updates]

        return asyncio.run(asyncio.wait_for(collect(), 5))


def end(reason: FinishReason | None = "stop", error: McError | None = None) -> GenerationEnd:
    reply = None
    if reason is not None:
        reply = GenerateReply(
            finish_reason=reason,
            num_prompt_tokens=5,
            num_reused_tokens=4,
            num_generated_tokens=3,
            num_published_blocks=0,
            timing=Timing(),
            prefill_node=NodeId("p"),
            decode_node=NodeId("d"),
        )
    return GenerationEnd(RequestId("r"), None, reply, 0, error)


def test_text_is_complete_and_counted() -> None:
    running = Running()
    running.streams[0].feed([0, 1, 2])
    running.clock.advance(0.5)
    running.streams[0].close(end("length"))
    [update] = running.updates()
    assert update.text == "abc"
    assert update.result is not None
    assert (update.result.finish, update.result.num_tokens) == ("length", 3)
    assert update.result.mooncake.ttft_s == 0.5
    assert update.result.mooncake.reused_tokens == 4


def test_stop_string_ends_text_and_asks_the_node_to_stop_once() -> None:
    running = Running("cd")
    running.streams[0].feed([0, 1, 2, 3, 4, 5])
    running.streams[0].close(end("cancelled"))
    [update] = running.updates()
    assert update.result is not None
    assert (update.text, update.result.text, update.result.finish) == ("ab", "ab", "stop")
    assert update.result.num_tokens == 5  # the letter after the stop string pushed its end out
    assert running.asked_to_stop == [0]


def test_stop_string_that_only_the_end_completes() -> None:
    running = Running("c")
    running.streams[0].feed([0, 1, 2])
    running.streams[0].close(end("length"))
    [update] = running.updates()
    assert update.result is not None
    assert (update.result.text, update.result.finish) == ("ab", "stop")


def test_a_death_after_the_stop_string_does_not_matter() -> None:
    running = Running("b")
    running.streams[0].feed([0, 1, 2])
    running.streams[0].close(end(None, Unavailable("gone")))
    [update] = running.updates()
    assert update.result is not None
    assert (update.result.text, update.result.finish) == ("a", "stop")


def test_a_death_before_it_does() -> None:
    running = Running("z")
    running.streams[0].feed([0, 1, 2])
    running.streams[0].close(end(None, Unavailable("gone")))
    with pytest.raises(Unavailable, match="gone"):
        running.updates()


def test_choices_advance_apart() -> None:
    running = Running(num_choices=2)
    running.streams[1].feed([3, 4])
    running.streams[1].close(end())
    running.streams[0].feed([0, 1])
    running.streams[0].close(end())
    assert [(update.index, update.text) for update in running.updates()] == [(0, "ab"), (1, "de")]
    assert [result.text for result in running.answer.results] == ["ab", "de"]
