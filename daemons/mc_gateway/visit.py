"""One request of a tenant, from its key to its line of usage. Where there are no tenants: nothing of that."""

import os
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.types import Scope

from daemons.client.generate import GenerationRequest
from daemons.config.mc_gateway import GatewayConfig
from daemons.config.usage import UsageLine, day_ends_in_s, day_of
from daemons.core.clock import Clock, monotonic
from daemons.core.errors import ConfigError
from daemons.mc_gateway.answer import Answer
from daemons.mc_gateway.metrics import GatewayMetrics
from daemons.mc_gateway.running_usage import KILLED
from daemons.mc_gateway.tenants import Caller, TenantBook, may_read_metrics, refused
from daemons.mc_gateway.usage import UsageLog


@dataclass(frozen=True, slots=True)
class Front:
    """Where requests come in. `book` and `usage` are None where everybody may."""

    gateway: str
    book: TenantBook | None
    usage: UsageLog | None
    metrics: GatewayMetrics
    clock: Clock
    has_open_metrics: bool = False

    def open(self, scope: Scope) -> "Visit":
        """Raises ApiError 401, and 429 beyond the tenant's rate."""
        if self.book is None or self.usage is None:
            return Visit()
        caller = self.book.find(scope)
        refusal = caller.limiter.begin(self.clock())
        if refusal is not None:
            self.metrics.tenant_requests.labels(caller.key.tenant, "429").inc()
            raise refused(refusal)
        return TenantVisit(self, self.book, self.usage, caller)

    def check(self, scope: Scope) -> None:
        """For what costs nothing. Raises ApiError 401."""
        if self.book is not None:
            self.book.find(scope)

    def shows_metrics(self, scope: Scope) -> bool:
        return self.book is None or may_read_metrics(scope, is_open=self.has_open_metrics)

    def jobs(self) -> list[Coroutine[None, None, None]]:
        """What goes on beside requests."""
        return [] if self.usage is None else self.usage.jobs()

    def close(self) -> None:
        if self.usage is not None:
            self.usage.close()


def open_front(config: GatewayConfig, metrics: GatewayMetrics) -> Front:
    """Raises ConfigError for a tenant file that is none, or where usage cannot be written."""
    section = config.tenants
    if not section.file:
        return Front(config.node.id, None, None, metrics, monotonic)
    path = Path(section.file)
    given = section.usage_dir or os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    usage = UsageLog(Path(given) if given else path.parent, time.time, config.node.id)
    try:
        book = TenantBook(path, usage, monotonic)
    except ConfigError:
        usage.close()
        raise
    metrics.usage_lost.set_function(lambda: usage.num_lost)
    metrics.usage_waiting.set_function(lambda: usage.num_waiting)
    return Front(config.node.id, book, usage, metrics, monotonic, section.open_metrics)


class Visit:
    """Of anybody."""

    tenant = ""

    def reserve(self, model: str, requests: Sequence[GenerationRequest]) -> None:
        """Before it is started. Raises ApiError 429 beyond the tenant's tokens."""

    def answered_by(self, answer: Answer) -> None:
        """From now on tokens may be used."""

    def close(self, status: int) -> None:
        """However it ended."""


class TenantVisit(Visit):
    """Of a tenant. Prompt and answer are counted from the first token on, whatever becomes of the rest."""

    def __init__(self, front: Front, book: TenantBook, usage: UsageLog, caller: Caller) -> None:
        self.tenant = caller.key.tenant
        self._front = front
        self._book = book
        self._usage = usage
        self._caller = caller
        self._answer: Answer | None = None
        self._model = self._request = ""
        self._reserved = 0
        self._day = ""

    def reserve(self, model: str, requests: Sequence[GenerationRequest]) -> None:
        wanted = sum(len(each.tokens) + each.sampling.max_tokens for each in requests)
        unix_s = self._usage.wall()
        day = day_of(unix_s)
        refusal = self._caller.limiter.reserve(
            wanted, self._front.clock(), (day, day_ends_in_s(unix_s))
        )
        if refusal is not None:
            raise refused(refusal)
        self._model, self._request = model, requests[0].request_id
        self._reserved, self._day = wanted, day

    def answered_by(self, answer: Answer) -> None:
        self._answer = answer
        self._usage.running.follow(self._so_far)

    def _so_far(self) -> UsageLine | None:
        line = self._line(KILLED)
        return line if line.prompt_tokens else None

    def close(self, status: int) -> None:
        self._usage.running.leave(self._so_far)
        line = self._line(status)
        used = line.prompt_tokens + line.completion_tokens
        self._caller.limiter.settle(self._reserved, used, self._day)
        self._caller.limiter.end()
        metrics = self._front.metrics
        metrics.tenant_requests.labels(self.tenant, str(status)).inc()
        if not used:
            return
        self._usage.append(line)
        metrics.tenant_cost.labels(self.tenant).inc(line.cost)
        for kind in ("prompt", "cached", "completion"):
            tokens = getattr(line, f"{kind}_tokens")
            metrics.tenant_tokens.labels(self.tenant, kind).inc(tokens)

    def _line(self, status: int) -> UsageLine:
        choices = [] if self._answer is None else self._answer.choices
        begun = [choice for choice in choices if choice.num_tokens or choice.result is not None]
        prompt = sum(choice.num_prompt for choice in begun)
        cached = sum(c.result.mooncake.reused_tokens for c in begun if c.result is not None)
        completion = sum(choice.num_tokens for choice in begun)
        price = self._book.price(self._model)
        return UsageLine(
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._usage.wall())),
            gateway=self._front.gateway,
            tenant=self.tenant,
            key=self._caller.key.id,
            model=self._model,
            request=self._request,
            status=status,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            cost=price.cost(prompt=prompt, cached=cached, completion=completion),
        )
