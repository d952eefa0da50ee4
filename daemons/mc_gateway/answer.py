"""One reply in the making: the token streams of its choices become text, whole or as events.

Stop strings are found here, since only the gateway sees text; the decode node is then told to stop.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from daemons.client.generate import GenerationEnd
from daemons.core.clock import Clock
from daemons.mc_gateway.api_reply import ChoiceResult, Finish, describe_end
from daemons.mc_gateway.bridge import TokenStream
from daemons.mc_gateway.metrics import GatewayMetrics
from daemons.text.detokenizer import Detokenizer
from daemons.text.stop_filter import StopFilter


@dataclass(frozen=True, slots=True)
class Update:
    """What is new in one choice; `result` with its last one."""

    index: int
    text: str
    result: ChoiceResult | None = None


class Choice:
    """One prompt's answer."""

    def __init__(
        self, stream: TokenStream, detokenizer: Detokenizer, stops: Sequence[str], num_prompt: int
    ) -> None:
        self.stream = stream
        self.num_tokens = 0
        self.num_prompt = num_prompt
        self.first_token_s: float | None = None
        self.last_token_s = 0.0
        self.result: ChoiceResult | None = None
        self._detokenizer = detokenizer
        self._stops = StopFilter(stops)
        self._pieces: list[str] = []

    @property
    def is_stopped(self) -> bool:
        """A stop string was met: the answer is complete, whatever becomes of its node."""
        return self._stops.stopped_by is not None

    def push(self, tokens: list[int]) -> str:
        """Text to show. Tokens one by one, so that those after a stop string are neither shown nor counted."""
        shown = []
        for token in tokens:
            if self.is_stopped:
                break
            self.num_tokens += 1
            shown.append(self._stops.push(self._detokenizer.push((token,))))
            if self.is_stopped:
                self.stream.stop()
        text = "".join(shown)
        self._pieces.append(text)
        return text

    def finish(self, end: GenerationEnd, ttft_s: float) -> str:
        """The held text; sets `result`."""
        text = self._stops.push(self._detokenizer.finish()) + self._stops.finish()
        self._pieces.append(text)
        finish: Finish = "length"
        if self.is_stopped or (end.reply is not None and end.reply.finish_reason == "stop"):
            finish = "stop"
        self.result = ChoiceResult(
            text="".join(self._pieces),
            finish=finish,
            num_prompt_tokens=self.num_prompt,
            num_tokens=self.num_tokens,
            mooncake=describe_end(end, ttft_s),
        )
        return text


class Answer:
    """All choices of one request. `ready` is shared by their streams. Raises McError when any of them fails."""

    def __init__(
        self,
        choices: Sequence[Choice],
        ready: asyncio.Event,
        *,
        metrics: GatewayMetrics,
        clock: Clock,
        began_s: float,
    ) -> None:
        self.choices = choices
        self._ready = ready
        self._metrics = metrics
        self._clock = clock
        self._began_s = began_s

    @property
    def results(self) -> list[ChoiceResult]:
        return [choice.result for choice in self.choices if choice.result is not None]

    @property
    def num_retries(self) -> int:
        """Of the choices that have ended, well or not."""
        ends = [choice.stream.end for choice in self.choices]
        return sum(end.num_retries for end in ends if end is not None)

    def cancel(self) -> None:
        for choice in self.choices:
            choice.stream.cancel()

    async def whole(self) -> list[ChoiceResult]:
        async for _ in self.updates():
            pass
        return self.results

    async def updates(self) -> AsyncIterator[list[Update]]:
        """Ends when every choice has."""
        while len(self.results) < len(self.choices):
            await self._ready.wait()
            self._ready.clear()
            updates = [
                update
                for index, choice in enumerate(self.choices)
                if choice.result is None and (update := self._advance(index, choice)) is not None
            ]
            if updates:
                yield updates

    def _advance(self, index: int, choice: Choice) -> Update | None:
        tokens = choice.stream.take()
        if tokens:
            self._measure(choice, len(tokens))
        text = choice.push(tokens)
        end = choice.stream.end
        if end is None:
            return Update(index, text) if tokens else None
        if end.error is not None and not choice.is_stopped:
            raise end.error
        first_s = choice.first_token_s if choice.first_token_s is not None else self._clock()
        text += choice.finish(end, first_s - self._began_s)
        return Update(index, text, choice.result)

    def _measure(self, choice: Choice, num_tokens: int) -> None:
        now_s = self._clock()
        if choice.first_token_s is None:
            choice.first_token_s = now_s
            self._metrics.ttft_s.observe(now_s - self._began_s)
        else:
            # Tokens that arrived together are one gap: it is what a reader sees.
            self._metrics.tbt_s.observe((now_s - choice.last_token_s) / num_tokens)
        choice.last_token_s = now_s
