"""Traces made up: Poisson arrivals of one kind of use each, all from one seed.

Blocks are numbered as in a recorded trace: one number names a block and all before it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from random import Random

from daemons.core.errors import ConfigError
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest, in_order


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """`requests_per_s` is the mean over the run; conversations and agents come in turns of one session."""

    kind: str
    num_requests: int = 2000
    requests_per_s: float = 2.0
    seed: int = 0


@dataclass(slots=True)
class _Context:
    """The prompt of a session: its length, and the blocks it fills."""

    numbers: Iterator[int]
    num_tokens: int = 0
    blocks: list[int] = field(default_factory=list)

    def grow(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        while len(self.blocks) < self.num_tokens // BLOCK_TOKENS:
            self.blocks.append(next(self.numbers))

    def fork(self) -> "_Context":
        return _Context(self.numbers, self.num_tokens, list(self.blocks))

    def request(self, arrival_s: float, output_tokens: int) -> TraceRequest:
        return TraceRequest(0, arrival_s, self.num_tokens, output_tokens, tuple(self.blocks))


class _Maker:
    """What all kinds draw from."""

    def __init__(self, plan: WorkloadPlan) -> None:
        self.plan = plan
        self.random = Random(f"{plan.kind}:{plan.seed}")
        self.numbers = count()

    def around(self, mean: float, least: int = 1) -> int:
        """Lengths have long tails: log-normal with sigma 0.6."""
        return max(least, int(mean / 1.197 * self.random.lognormvariate(0.0, 0.6)))

    def arrivals(self, turns: float = 1.0) -> Iterator[float]:
        """Of sessions with so many turns each, so that requests come at the planned rate."""
        now_s = 0.0
        while True:
            now_s += self.random.expovariate(self.plan.requests_per_s / turns)
            yield now_s

    def context(self, num_tokens: int) -> _Context:
        made = _Context(self.numbers)
        made.grow(num_tokens)
        return made


def documents(make: _Maker) -> Iterator[TraceRequest]:
    """Long documents of about 20k tokens, five questions each, spread over minutes."""
    for start_s in make.arrivals(turns=5):
        document, when_s = make.context(make.around(20_000, 1000)), start_s
        for _ in range(5):
            asked = document.fork()
            asked.grow(make.around(60))
            yield asked.request(when_s, make.around(120))
            when_s += make.random.expovariate(1 / 30)


def chats(make: _Maker) -> Iterator[TraceRequest]:
    """A shared system prompt, then about six turns; each answer becomes part of the next prompt."""
    system = make.context(1024)
    for start_s in make.arrivals(turns=6):
        talk, when_s = system.fork(), start_s
        for _ in range(make.random.randint(2, 10)):
            talk.grow(make.around(300))
            answer = make.around(250)
            yield talk.request(when_s, answer)
            talk.grow(answer)
            when_s += make.random.expovariate(1 / 40)


def agents(make: _Maker) -> Iterator[TraceRequest]:
    """Long instructions with tools, then a dozen quick steps that each add a tool's result."""
    tools = [make.context(make.around(6000, 2000)) for _ in range(4)]
    for start_s in make.arrivals(turns=12):
        task, when_s = make.random.choice(tools).fork(), start_s
        task.grow(make.around(400))
        for _ in range(make.random.randint(6, 18)):
            answer = make.around(60)
            yield task.request(when_s, answer)
            task.grow(answer + make.around(500))
            when_s += make.random.expovariate(1 / 6)


def batch(make: _Maker) -> Iterator[TraceRequest]:
    """One prompt of 4k tokens, and items of about 1k behind it, as fast as planned."""
    shared = make.context(4096)
    for when_s in make.arrivals():
        item = shared.fork()
        item.grow(make.around(1000))
        yield item.request(when_s, make.around(80))


def unrelated(make: _Maker) -> Iterator[TraceRequest]:
    """Prompts of about 8k tokens that share nothing."""
    for when_s in make.arrivals():
        yield make.context(make.around(8000, 16)).request(when_s, make.around(230))


WORKLOADS: dict[str, Callable[[_Maker], Iterator[TraceRequest]]] = {
    "documents": documents,
    "chats": chats,
    "agents": agents,
    "batch": batch,
    "unrelated": unrelated,
}


def generate(plan: WorkloadPlan) -> list[TraceRequest]:
    """`num_requests` of one kind in order of arrival. Raises ConfigError for a kind that is not known."""
    if plan.kind not in WORKLOADS:
        raise ConfigError(f"workload {plan.kind!r} is none of {', '.join(WORKLOADS)}")
    if plan.num_requests < 1 or not 0 < plan.requests_per_s < 1e6:
        raise ConfigError("a workload has at least one request, at a rate above 0 a second")
    # Sessions overlap: more are begun than needed, so that the last minutes are as full as the others.
    making = WORKLOADS[plan.kind](_Maker(plan))
    made = in_order(islice(making, 3 * plan.num_requests + 100))
    return made[: plan.num_requests]
