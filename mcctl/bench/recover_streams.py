"""Streams that are under way while a daemon of their cluster is hurt, and how long each was silent from then on."""

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Final, Self

from daemons.core.errors import McError, Unavailable
from mcctl.bench.patience import PATIENCE_S
from mcctl.openai_stream import Body, OpenAiClient

PROMPT_TOKENS: Final = 128
_FIRST_TOKEN_ID: Final = 16
"""Below it are the control tokens of most vocabularies."""
_NUM_SHARED: Final = 4
_PAUSE_S: Final = 0.05
"""After a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdPlan:
    """`streams` threads ask for answers of `answer_tokens`, one after the other, to prompts never seen before.

    As many again ask for two tokens, to a few prompts that the pool soon holds.
    """

    model: str
    vocab_size: int
    streams: int = 4
    answer_tokens: int = 150
    seed: int = 0


@dataclass(slots=True)
class Watched:
    """One request. Times are of the monotonic clock."""

    is_long: bool
    began_s: float
    heard_s: list[float] = field(default_factory=list)
    ended_s: float | None = None
    error: str = ""
    num_retries: int = 0

    def silence_s(self, since_s: float) -> float:
        """The longest time without a word from it that began or went on after `since_s`."""
        ended = [] if self.ended_s is None else [self.ended_s]
        times = [self.began_s, *self.heard_s, *ended]
        gaps = itertools.pairwise(times)
        return max((b - max(a, since_s) for a, b in gaps if b > since_s), default=0.0)


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What became of the requests that were under way at a time, or came soon after."""

    num_requests: int
    num_retried: int
    num_failed: int
    silence_s: float
    calm_s: float
    """The longest silence of them before that time: what this machine and these prompts take anyway."""
    why_failed: str

    @property
    def said(self) -> str:
        failed = f"{self.num_failed} failed" + (f" ({self.why_failed})" if self.why_failed else "")
        return (
            f"{self.num_requests} requests, {self.num_retried} retried, {failed}; "
            f"{self.calm_s:.2f} s before"
        )


class Crowd:
    """Asks from when it is entered; `end` asks for nothing new and waits for what is under way."""

    def __init__(self, client: OpenAiClient, traffic: CrowdPlan) -> None:
        self._client = client
        self._traffic = traffic
        self._asked: list[Watched] = []
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(number,), daemon=True)
            for number in range(2 * traffic.streams)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        try:
            self._wait_flowing()
        except BaseException:
            self._ending.set()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()

    def end(self) -> None:
        """Raises Unavailable for one that hangs."""
        self._ending.set()
        deadline_s = time.monotonic() + PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            raise Unavailable(f"a request neither went on nor ended within {PATIENCE_S:g} s")

    def aftermath(self, hurt_s: float, until_s: float, *, long_only: bool = False) -> Aftermath:
        """Of the requests that were under way at `hurt_s` or came before `until_s`."""
        with self._lock:
            asked = list(self._asked)
        touched = [
            each
            for each in asked
            if each.began_s < until_s
            and (each.ended_s is None or each.ended_s > hurt_s)
            and (each.is_long or not long_only)
        ]
        failed = [each for each in touched if each.error]
        return Aftermath(
            num_requests=len(touched),
            num_retried=sum(each.num_retries > 0 for each in touched),
            num_failed=len(failed),
            silence_s=max((each.silence_s(hurt_s) for each in touched), default=0.0),
            calm_s=_calm_s(touched, hurt_s),
            why_failed=failed[0].error if failed else "",
        )

    def _wait_flowing(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            with self._lock:
                flowing = sum(
                    each.is_long and each.ended_s is None and bool(each.heard_s)
                    for each in self._asked
                )
                why = next((each.error for each in self._asked if each.error), "")
            if flowing == self._traffic.streams:
                return
            time.sleep(_PAUSE_S)
        raise Unavailable(f"the streams did not begin within {PATIENCE_S:g} s {why}".rstrip())

    def _ask_on(self, number: int) -> None:
        is_long = number < self._traffic.streams
        for count in itertools.count():
            if self._ending.is_set():
                return
            which = f"{number}:{count}" if is_long else str(count % _NUM_SHARED)
            watched = Watched(is_long, time.monotonic())
            with self._lock:
                self._asked.append(watched)
            self._ask(watched, Random(f"{self._traffic.seed}:{which}"))
            if watched.error:
                time.sleep(_PAUSE_S)

    def _ask(self, watched: Watched, random: Random) -> None:
        ids = range(_FIRST_TOKEN_ID, self._traffic.vocab_size)
        body: Body = {
            "model": self._traffic.model,
            "prompt": random.choices(ids, k=PROMPT_TOKENS),
            "max_tokens": self._traffic.answer_tokens if watched.is_long else 2,
            "temperature": 0,
            "ignore_eos": True,
        }
        try:
            answer = self._client.complete(body, lambda _: watched.heard_s.append(time.monotonic()))
            watched.num_retries = answer.mooncake.num_retries
        except McError as error:
            watched.error = error.message
        watched.ended_s = time.monotonic()


def _calm_s(touched: Sequence[Watched], hurt_s: float) -> float:
    before = (
        Watched(each.is_long, each.began_s, [at for at in each.heard_s if at <= hurt_s])
        for each in touched
    )
    return max((each.silence_s(0.0) for each in before), default=0.0)
