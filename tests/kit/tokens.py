"""A client that speaks tokens: schedule at the master, generate at the decode node, as the gateway does."""

import itertools
import random
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from daemons.core.ids import NodeId, RequestId, new_request_id
from daemons.protocol.lookup import Locate, LocateReply
from daemons.protocol.node import ListModels, ListModelsReply, ModelDescription
from daemons.protocol.prefix_hash import block_hashes
from daemons.protocol.request import (
    CacheUse,
    Generate,
    GenerateReply,
    Plan,
    SamplingParams,
    Schedule,
    Tokens,
)
from daemons.rpc import SyncClient


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: list[int]
    reply: GenerateReply
    plan: Plan

    @property
    def num_reused(self) -> int:
        return self.reply.num_reused_tokens

    @property
    def num_on_device(self) -> int:
        """Of these, what the plan expected in the KV arena of the prefill instance."""
        chosen = (c for c in self.plan.candidates if c.node == self.plan.prefill.node)
        return next(chosen).device_tokens


class TokenClient:
    """One request at a time. Errors are raised as the families of McError they came as."""

    def __init__(self, master: str) -> None:
        self.master = SyncClient(master, timeout_s=5)
        self._decodes: dict[str, SyncClient] = {}

    def model(self) -> ModelDescription:
        reply = self.master.request(ListModels())
        assert isinstance(reply, ListModelsReply)
        return reply.models[0]

    def plan(
        self,
        tokens: Sequence[int],
        max_tokens: int,
        *,
        cache: CacheUse = "use",
        request_id: RequestId | None = None,
        exclude: Collection[NodeId] = (),
    ) -> Plan:
        model = self.model()
        hashes = block_hashes(model.namespace, tokens, model.block_tokens)
        reply = self.master.request(
            Schedule(
                request_id=request_id or new_request_id(),
                model=model.name,
                num_prompt_tokens=len(tokens),
                max_tokens=max_tokens,
                hashes=hashes if cache == "use" else [],
                namespace=model.namespace,
                exclude=list(exclude),
            )
        )
        assert isinstance(reply, Plan)
        return reply

    def generate(
        self,
        tokens: Sequence[int],
        max_tokens: int = 16,
        *,
        cache: CacheUse = "use",
        sampling: SamplingParams | None = None,
        drafts: bool = True,
        timeout_s: float = 60,
        exclude: Collection[NodeId] = (),
    ) -> Answer:
        plan = self.plan(tokens, max_tokens, cache=cache, exclude=exclude)
        return self.run(
            plan,
            tokens,
            sampling or greedy(max_tokens),
            cache=cache,
            drafts=drafts,
            timeout_s=timeout_s,
        )

    def run(
        self,
        plan: Plan,
        tokens: Sequence[int],
        sampling: SamplingParams,
        *,
        cache: CacheUse = "use",
        drafts: bool = True,
        timeout_s: float = 60,
    ) -> Answer:
        model = self.model()
        hashes = block_hashes(model.namespace, tokens, model.block_tokens)
        message = Generate(
            request_id=plan.request_id,
            model=model.name,
            namespace=model.namespace,
            tokens=list(tokens),
            hashes=hashes if cache == "use" else [],
            sampling=sampling,
            plan=plan,
            cache=cache,
            drafts=drafts,
        )
        out: list[int] = []
        for part in self._decode(plan.decode.control).stream(message, timeout_s):
            if isinstance(part, Tokens):
                out.extend(part.tokens)
            elif isinstance(part, GenerateReply):
                return Answer(out, part, plan)
        raise AssertionError("the stream ended without a reply")

    def wait_sealed(self, tokens: Sequence[int], timeout_s: float = 30) -> None:
        """Until all full blocks of `tokens` are in the pool: puts go on after the answer."""
        model = self.model()
        hashes = block_hashes(model.namespace, tokens, model.block_tokens)
        deadline_s = time.monotonic() + timeout_s
        while True:
            reply = self.master.request(Locate(hashes=hashes, lease_ms=0))
            assert isinstance(reply, LocateReply)
            if all(reply.counts):
                return
            assert time.monotonic() < deadline_s, f"not sealed within {timeout_s} s"
            time.sleep(0.01)

    def wait_on_device(self, tokens: Sequence[int], timeout_s: float = 30) -> None:
        """Until the master knows that an instance holds all full blocks of `tokens` in its KV arena."""
        model = self.model()
        hashes = block_hashes(model.namespace, tokens, model.block_tokens)
        deadline_s = time.monotonic() + timeout_s
        while True:
            reply = self.master.request(Locate(hashes=hashes, lease_ms=0, wants_devices=True))
            assert isinstance(reply, LocateReply)
            if len(reply.devices) == len(hashes):
                return
            assert time.monotonic() < deadline_s, f"not on a device within {timeout_s} s"
            time.sleep(0.01)

    def close(self) -> None:
        for client in (self.master, *self._decodes.values()):
            client.close()

    def __enter__(self) -> "TokenClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decode(self, endpoint: str) -> SyncClient:
        if endpoint not in self._decodes:
            self._decodes[endpoint] = SyncClient(endpoint, timeout_s=60)
        return self._decodes[endpoint]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def random_prompt(seed: int, length: int, vocab_size: int) -> list[int]:
    """The same prefix for the same seed, whatever the length."""
    stream = random.Random(seed)
    return list(itertools.islice(iter(lambda: stream.randrange(vocab_size), -1), length))
