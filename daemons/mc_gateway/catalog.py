"""Which models can be asked for: a tokenizer from the gateway's config and live instances from the master.

Several namespaces may serve one name (an upgrade, mixed machines); the master ranks them: a prompt goes to the first,
the one with a prefill and a decode instance, then the most instances, then the newest.

Refreshed every second, and once more when a name is not known. With the master gone the last answer stays: running
streams go on, and new requests learn from Schedule that nobody plans them.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from daemons.core.errors import McError, ProtocolError, Unavailable
from daemons.core.ids import short
from daemons.mc_gateway.api_error import ApiError
from daemons.mc_gateway.bridge import Bridge
from daemons.protocol.messages import Reply
from daemons.protocol.node import ListModels, ListModelsReply, ModelDescription
from daemons.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

REFRESH_S: Final = 1.0
STALE_S: Final = 4.0
"""Health is bad when the master has not answered for so long."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that can be asked now, by this tenant; "" is everybody where there are none."""

    name: str
    tokenizer: Tokenizer
    description: ModelDescription
    tenant: str = ""

    @property
    def hidden_tokens(self) -> frozenset[int]:
        """Tokens that end an answer and are no part of its text."""
        return self.tokenizer.eos_token_ids | frozenset(self.description.eos_token_ids)


class Catalog:
    """Coroutines' thread, except `poll`."""

    def __init__(self, tokenizers: Mapping[str, Tokenizer], bridge: Bridge) -> None:
        self.descriptions: dict[str, ModelDescription] = {}
        self.others: dict[str, list[ModelDescription]] = {}
        """What else serves a name, where anything does."""
        self._tokenizers = tokenizers
        self._bridge = bridge
        self._clock = bridge.cluster.loop.clock
        self._last_answer_s: float | None = None
        self._last_error: McError = Unavailable("the master has not answered yet")
        self._waiters: list[asyncio.Future[None]] = []
        self._is_asking = False

    def poll(self) -> None:
        """Ask the master. The rpc thread's timer calls it."""
        try:
            self._bridge.cluster.master.request(
                ListModels(), timeout_s=REFRESH_S, on_reply=self._on_reply
            )
        except McError as error:
            self._on_reply(error)

    async def find(self, name: str, tenant: str = "") -> ServedModel:
        """Raises ApiError 404 for a name nobody serves, 503 for one that is only not served now."""
        if name in self._tokenizers and name not in self.descriptions:
            await self._refresh()
        tokenizer, description = self._tokenizers.get(name), self.descriptions.get(name)
        if tokenizer is not None and description is not None:
            return ServedModel(name, tokenizer, description, tenant)
        raise self._explain(name)

    def served(self) -> list[ModelDescription]:
        return [model for name, model in self.descriptions.items() if name in self._tokenizers]

    def sickness(self) -> str | None:
        """Why a request would fail now, or None."""
        if self._last_answer_s is None or self._clock() - self._last_answer_s > STALE_S:
            return f"the master is not reachable: {self._last_error.message}"
        if not self.served():
            configured = ", ".join(self._tokenizers) or "none"
            return f"no instance serves a model of this gateway (configured: {configured})"
        return None

    def _explain(self, name: str) -> ApiError:
        if name in self.descriptions:
            return ApiError(
                404,
                f"model {name!r} is served, but this gateway has no tokenizer for it; "
                f"add it to [models] in mc-gateway.toml",
                param="model",
                code="model_not_found",
            )
        if name in self._tokenizers:
            why = self.sickness() or f"no instance serves {name!r} now"
            return ApiError(503, why, code="unavailable", retry_after_s=1)
        known = ", ".join(sorted(self._tokenizers)) or "none"
        return ApiError(
            404,
            f"model {name!r} does not exist; this gateway knows: {known}",
            param="model",
            code="model_not_found",
        )

    async def _refresh(self) -> None:
        """Wait for the next answer; any number of waiters share one question."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if not self._is_asking:
            self._is_asking = True
            self._bridge.cluster.loop.call_soon_threadsafe(self.poll)
        await waiter

    def _on_reply(self, reply: Reply | McError) -> None:
        self._bridge.post(lambda: self._learn(reply))

    def _learn(self, reply: Reply | McError) -> None:
        self._is_asking = False
        if isinstance(reply, ListModelsReply):
            self._last_answer_s = self._clock()
            self._replace(reply.models)
        else:
            unexpected = ProtocolError(f"the master answered {type(reply).__name__}")
            self._last_error = reply if isinstance(reply, McError) else unexpected
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _replace(self, models: list[ModelDescription]) -> None:
        found: dict[str, ModelDescription] = {}
        others: dict[str, list[ModelDescription]] = {}
        for model in models:
            if found.setdefault(model.name, model).namespace != model.namespace:
                others.setdefault(model.name, []).append(model)
        for name, rest in others.items():
            before = self.descriptions.get(name)
            if (
                name not in self.others
                or before is None
                or before.namespace != found[name].namespace
            ):
                log.warning(
                    "instances of one model do not share blocks model=%s chosen=%s others=%s",
                    name,
                    short(found[name].namespace),
                    ",".join(short(model.namespace) for model in rest),
                )
        self.descriptions, self.others = found, others
