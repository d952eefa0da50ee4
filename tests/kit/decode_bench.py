"""A decode node without a model: real KV memory, real transfers, real rpc; the test is the engine and the prefill node.

Time is the test's own: nothing expires unless `advance` says so.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from daemons.client.channel_pool import ChannelPool
from daemons.config.common import ModelSection, TransferSection
from daemons.config.mc_decode import DecodeConfig, DecodeSection, NodeSection
from daemons.core.clock import ManualClock
from daemons.core.errors import McError
from daemons.core.ids import HostId, Incarnation, NodeId, RequestId
from daemons.engine.arena.kv_arena import KvArena, KvSlot
from daemons.engine.geometry import KvGeometry
from daemons.engine.instance import Instance
from daemons.mc_decode.request import Request, Stepped
from daemons.mc_decode.requests import Effects, Requests
from daemons.protocol.base import Message, Ok
from daemons.protocol.block import BlockLocation, Put, PutReply
from daemons.protocol.messages import Part, Reply
from daemons.protocol.node import HelloReply, ModelDescription
from daemons.protocol.packed import BlockLocations
from daemons.protocol.prefix_hash import block_hashes
from daemons.protocol.request import (
    Cancel,
    Generate,
    GenerateReply,
    InstanceAddress,
    LayersReady,
    Plan,
    Prefill,
    PrefillReply,
    PrefillStarted,
    Pulled,
    PutTarget,
    RequestDone,
    SamplingParams,
    Timing,
    Tokens,
)
from daemons.rpc import Call, Channel, Loop, Server
from daemons.transfer import GenerationTable, TransferEngine, allocate_shared

NAMESPACE = bytes(16)
EOS = 99
GEOMETRY = KvGeometry(num_layers=2, num_kv_heads=1, head_dim=4, dtype="float32", block_tokens=16)
MODEL = ModelDescription(
    name="m",
    namespace=NAMESPACE,
    dtype="float32",
    block_tokens=16,
    chunk_tokens=256,
    max_context_tokens=512,
    num_layers=2,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=100,
    eos_token_ids=[EOS],
    is_reuse_safe=True,
    is_decode_canonical=True,
)
PREFILL, DECODE, POOL = NodeId("p-1"), NodeId("d-1"), NodeId("c-1")


def make_instance(transfer: TransferEngine, capacity_tokens: int) -> Instance:
    """All of an instance but what computes."""
    memory = allocate_shared("test-kv", KvArena.arena_bytes(GEOMETRY, capacity_tokens))
    return Instance(
        transfer=transfer,
        memory=memory,
        region=transfer.register(memory),
        generations=GenerationTable(transfer, 256),
        arena=KvArena(GEOMETRY, capacity_tokens, memory.view),
        engine=SimpleNamespace(),  # type: ignore[arg-type]  # nothing here computes
        model=MODEL,
    )


@dataclass
class Answer:
    """What came back to the client."""

    request_id: RequestId
    tokens: list[int] = field(default_factory=list)
    end: Reply | McError | None = None

    @property
    def reply(self) -> GenerateReply:
        assert isinstance(self.end, GenerateReply), self.end
        return self.end

    @property
    def error(self) -> McError:
        assert isinstance(self.end, McError), self.end
        return self.end

    def on_part(self, part: Part) -> None:
        assert isinstance(part, Tokens)
        self.tokens += part.tokens

    def on_reply(self, reply: Reply | McError) -> None:
        assert self.end is None, "ended twice"
        self.end = reply


@dataclass
class Prompt:
    """One prompt at the scripted prefill node, in a slot of its own arena."""

    call: Call
    message: Prefill
    slot: KvSlot


class PrefillPeer:
    """Speaks a prefill node's protocol; the test says when."""

    def __init__(self, bench: "Bench") -> None:
        self._bench = bench
        self.instance = make_instance(bench.transfer, 8192)
        self.instance.memory.array[:] = np.random.default_rng(1).integers(
            0, 256, self.instance.memory.size_bytes, np.uint8
        )
        self.prompts: dict[RequestId, Prompt] = {}
        self.pulled: list[RequestId] = []
        self.cancelled: list[RequestId] = []
        self.server = Server(
            bench.loop, "tcp://127.0.0.1:*", bench.hello("prefill", PREFILL), self._handle
        )

    def start(self, request_id: RequestId, **changes: object) -> Prompt:
        prompt = self.prompts[request_id]
        started = {
            "kv": self.instance.source(prompt.slot, 0, len(prompt.message.tokens)),
            "bytes_per_token_row": GEOMETRY.bytes_per_token_layer_half,
            "num_reused_tokens": 0,
        }
        prompt.call.part(PrefillStarted(**(started | changes)))  # type: ignore[arg-type]
        return prompt

    def compute(self, request_id: RequestId, start: int = 0, end: int | None = None) -> None:
        """Announce [start, end) layer by layer, as they appear."""
        prompt = self.prompts[request_id]
        end = len(prompt.message.tokens) if end is None else end
        for layer in range(GEOMETRY.num_layers):
            prompt.call.part(LayersReady(first_layer=layer, last_layer=layer, start=start, end=end))

    def reply(
        self, request_id: RequestId, token: int = 7, num_reused: int = 0, num_published: int = 0
    ) -> None:
        self.prompts[request_id].call.reply(
            PrefillReply(
                first_token=token,
                num_reused_tokens=num_reused,
                timing=Timing(compute_s=0.5),
                num_published_blocks=num_published,
            )
        )

    def serve(self, request_id: RequestId, token: int = 7, num_published: int = 0) -> None:
        """All of it at once."""
        self.start(request_id)
        self.compute(request_id)
        self.reply(request_id, token, num_published=num_published)

    def void(self, request_id: RequestId) -> None:
        """The slot is given to somebody else."""
        self.instance.generations.advance(self.prompts[request_id].slot.index)

    def _handle(self, call: Call) -> None:
        match call.message:
            case Prefill() as message:
                slot = self.instance.arena.allocate(len(message.tokens))
                self.prompts[message.request_id] = Prompt(call, message, slot)
            case Pulled(request_id=request_id):
                self.pulled.append(request_id)
                call.reply(Ok())
            case Cancel(request_id=request_id):
                self.cancelled.append(request_id)
                call.reply(Ok())
            case other:
                raise AssertionError(other)


class Bench:
    """Requests of one decode node, a prefill peer, a pool that takes puts, and a client, all in one loop."""

    def __init__(
        self, *, capacity_tokens: int = 768, transfer_timeout_s: float = 5.0, **decode: object
    ) -> None:
        self.clock = ManualClock(1000.0)
        self.loop = Loop(self.clock)
        self.transfer = TransferEngine(transports=("tcp",))
        self.instance = make_instance(self.transfer, capacity_tokens)
        self.joined: list[Request] = []
        self.leaving: list[Request] = []
        self.told: list[Message] = []
        self.puts: list[Call] = []
        self.prefill = PrefillPeer(self)
        self._pool = Server(
            self.loop, "tcp://127.0.0.1:*", self.hello("cachenode", POOL), self.puts.append
        )
        config = DecodeConfig(
            model=ModelSection(path="none"),
            node=NodeSection(id=DECODE),
            decode=DecodeSection(**decode),  # type: ignore[arg-type]
            transfer=TransferSection(timeout_s=transfer_timeout_s),
        )
        self._channels = ChannelPool(self.loop)
        self.requests = Requests(
            self.loop,
            config,
            self.instance,
            Effects(self.joined.append, self._leave, self.told.append),
            self._channels,
        )
        self._server = Server(
            self.loop, "tcp://127.0.0.1:*", self.hello("decode", DECODE), self._handle
        )
        self.client = Channel(self.loop, self._server.endpoint)
        self._count = 0

    def hello(self, role: str, node: NodeId) -> Callable[[], HelloReply]:
        return lambda: HelloReply(node=node, role=role, incarnation=Incarnation(0))  # type: ignore[arg-type]

    def ask(
        self,
        num_tokens: int = 100,
        max_tokens: int = 4,
        *,
        timeout_s: float = 600.0,
        matched: list[BlockLocation] | None = None,
        **changes: object,
    ) -> Answer:
        """Sent, not yet arrived."""
        self._count += 1
        tokens = [(self._count + i) % 90 for i in range(num_tokens)]
        request_id = RequestId(f"r{self._count}")
        fields = {
            "request_id": request_id,
            "model": "m",
            "namespace": NAMESPACE,
            "tokens": tokens,
            "hashes": block_hashes(NAMESPACE, tokens, 16),
            "sampling": SamplingParams(max_tokens=max_tokens),
            "plan": self.plan(request_id, matched or []),
        }
        message = Generate(**(fields | changes))  # type: ignore[arg-type]
        answer = Answer(message.request_id)
        self.client.request(
            message, timeout_s=timeout_s, on_reply=answer.on_reply, on_part=answer.on_part
        )
        return answer

    def plan(self, request_id: RequestId, matched: list[BlockLocation]) -> Plan:
        prefill, decode = self.prefill.server.endpoint, "tcp://127.0.0.1:1"
        return Plan(
            request_id=request_id,
            incarnation=Incarnation(1),
            prefill=InstanceAddress(node=PREFILL, control=prefill, host_id=HostId("h")),
            decode=InstanceAddress(node=DECODE, control=decode, host_id=HostId("h")),
            matched=BlockLocations.pack(matched),
            put_target=PutTarget(node=POOL, control=self._pool.endpoint),
            predicted_ttft_s=0.1,
        )

    def until(self, is_true: Callable[[], object], timeout_s: float = 30.0) -> None:
        """Turn the loop in real time, the clock of the loop standing still."""
        end_s = time.monotonic() + timeout_s
        while not is_true():
            assert time.monotonic() < end_s, "it does not come"
            self.loop.run_once(0.01)

    def settle(self, seconds: float = 0.05) -> None:
        """Let what is under way arrive."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.loop.run_once(0.01)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.loop.run_once(0.0)

    def at_prefill(self, answer: Answer) -> None:
        self.until(lambda: answer.request_id in self.prefill.prompts)

    def fill(self, answer: Answer, token: int = 7, num_published: int = 0) -> Request:
        """The whole way to the engine."""
        self.at_prefill(answer)
        self.prefill.serve(answer.request_id, token, num_published)
        self.until(lambda: self.joined and self.joined[-1].message.request_id == answer.request_id)
        return self.joined[-1]

    def step(self, request: Request, token: int, finish: str | None = None) -> None:
        self.requests.stepped([Stepped(request, [token], finish)], 0.01)  # type: ignore[arg-type]

    def let_go(self) -> None:
        """The engine has finished the step it was in."""
        while self.leaving:
            self.requests.left(self.leaving.pop())

    def answer_puts(self) -> None:
        for call in self.puts:
            assert isinstance(call.message, Put)
            call.reply(PutReply(results=["stored"] * len(call.message.blocks)))
        self.puts.clear()

    def done(self, answer: Answer) -> RequestDone:
        """What the master heard of it: exactly one word."""
        found = [
            message
            for message in self.told
            if isinstance(message, RequestDone) and message.request_id == answer.request_id
        ]
        assert len(found) == 1, found
        return found[0]

    def has_same_kv(self, request: Request) -> bool:
        """Whether every byte of the prompt's KV is what the prefill node holds."""
        peer = self.prefill
        theirs = peer.prompts[request.message.request_id].slot
        assert request.slot is not None
        count = request.num_prompt_tokens
        return all(
            np.array_equal(
                self.instance.half(request.slot, layer, half, count),
                peer.instance.half(theirs, layer, half, count),
            )
            for layer in range(GEOMETRY.num_layers)
            for half in range(2)
        )

    def close(self) -> None:
        self.client.close()
        self._channels.close()
        self._server.close()
        self._pool.close()
        self.prefill.server.close()
        self.requests.close()
        self.instance.arena.check_invariants()
        self.transfer.close()
        self.loop.close()

    def _leave(self, request: Request) -> None:
        self.leaving.append(request)

    def _handle(self, call: Call) -> None:
        match call.message:
            case Generate() as message:
                self.requests.admit(call, message)
            case Cancel() as message:
                self.requests.cancel(message)
                call.reply(Ok())
            case other:
                raise AssertionError(other)
