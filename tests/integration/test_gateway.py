"""The real gateway over HTTP; master and decode nodes speak the real protocol and answer a script."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.daemon import wait_for
from openai.types.chat import ChatCompletionMessageParam
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from daemons.config.common import MasterLinkSection
from daemons.config.mc_gateway import (
    AccessLogSection,
    GatewayConfig,
    HttpSection,
    NodeSection,
    RequestSection,
    TenantsSection,
)
from daemons.core.errors import (
    ConfigError,
    Exhausted,
    McError,
    NotFound,
    Rejected,
    TransferError,
    Unavailable,
)
from daemons.core.ids import Epoch, HostId, Incarnation, NodeId, RequestId
from daemons.mc_gateway.api_body import ChatBody, CompletionBody
from daemons.mc_gateway.app import GatewayApp
from daemons.protocol.base import Ok
from daemons.protocol.cache import CacheStat, CacheStatReply
from daemons.protocol.node import (
    Beat,
    HelloReply,
    Join,
    JoinReply,
    Leave,
    ListedNode,
    ListModels,
    ListModelsReply,
    ListNodes,
    ListNodesReply,
    ModelDescription,
    NodeDescription,
    Role,
)
from daemons.protocol.packed import BlockLocations
from daemons.protocol.prefix_hash import block_hashes
from daemons.protocol.request import (
    Cancel,
    Generate,
    GenerateReply,
    InstanceAddress,
    Plan,
    Schedule,
    Timing,
    Tokens,
)
from daemons.protocol.request_list import ListedRequest, ListRequests, ListRequestsReply
from daemons.rpc import Call, Loop, Server
from daemons.service.daemon import TwoLoops

MODEL = "tiny"
NAMESPACE = b"n" * 16
EOS = 1
CONTEXT = 4096
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_model_directory(directory: Path) -> Path:
    """Byte-level, a token per byte: what the decode node scripts is easy to read."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<|start|>": 0, "<|end|>": EOS} | {
        letter: index + 2 for index, letter in enumerate(letters)
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "bos_token": "<|start|>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def describe_model(name: str = MODEL, **changes: object) -> ModelDescription:
    values = {
        "name": name,
        "namespace": NAMESPACE,
        "dtype": "bfloat16",
        "block_tokens": 16,
        "chunk_tokens": 64,
        "max_context_tokens": CONTEXT,
        "num_layers": 2,
        "num_kv_heads": 1,
        "head_dim": 8,
        "vocab_size": 258,
        "eos_token_ids": [EOS],
        "is_reuse_safe": True,
    }
    return ModelDescription(**(values | changes))  # type: ignore[arg-type]


EMPTY_POOL = CacheStatReply(
    num_blocks=0,
    num_replicas=0,
    used_bytes=0,
    capacity_bytes=0,
    num_leased=0,
    num_lookups=0,
    num_lookup_blocks=0,
    num_hit_blocks=0,
    num_stored=0,
    num_evicted=0,
    num_cleared=0,
    blocks_by_model={},
)


def describe_node(name: str, role: Role = "master", host: str = "here") -> NodeDescription:
    return NodeDescription(
        node=NodeId(name),
        role=role,
        host=host,
        host_id=HostId("h"),
        epoch=Epoch(1),
        control="tcp://127.0.0.1:1",
        pid=1,
        software="0.1.0",
    )


class LoopThread:
    """A loop in its own thread, whose members are used by posting to it."""

    def __init__(self) -> None:
        self.loop = Loop()
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()

    def call(self, function: Callable[[], object]) -> object:
        answer: Future[object] = Future()
        self.loop.call_soon_threadsafe(lambda: answer.set_result(function()))
        return answer.result(5)

    def close(self) -> None:
        self.loop.stop()
        self._thread.join(5)
        self.loop.close()


@dataclass(slots=True)
class Stream:
    call: Call
    message: Generate
    answer: list[int]
    position: int = 0


class ScriptedDecode:
    """Streams `answer(message)` token by token; ends like a decode node, by eos or max_tokens."""

    def __init__(self, node: str, answer: Callable[[Generate], list[int]]) -> None:
        self.node = NodeId(node)
        self.answer = answer
        self.interval_s = 0.001
        self.refuse: McError | None = None
        self.die_after: int | None = None
        self.cancelled: list[Cancel] = []
        self.generated: list[Generate] = []
        self.streams: dict[RequestId, Stream] = {}
        self.thread = LoopThread()
        self.server: Server | None = None
        self.endpoint = str(self.thread.call(self._listen))

    def address(self) -> InstanceAddress:
        return InstanceAddress(node=self.node, control=self.endpoint, host_id=HostId("h"))

    def kill(self) -> None:
        self.thread.call(self._close)

    def close(self) -> None:
        self.kill()
        self.thread.close()

    def _listen(self) -> str:
        def hello() -> HelloReply:
            return HelloReply(node=self.node, role="decode", incarnation=Incarnation(0))

        self.server = Server(self.thread.loop, "tcp://127.0.0.1:*", hello, self._handle)
        return self.server.endpoint

    def _close(self) -> None:
        self.streams.clear()
        if self.server is not None:
            self.server.close()
            self.server = None

    def _handle(self, call: Call) -> None:
        match call.message:
            case Generate() as message:
                self.generated.append(message)
                if self.refuse is not None:
                    raise self.refuse
                stream = Stream(call, message, self.answer(message))
                self.streams[message.request_id] = stream
                self._step(stream)
            case Cancel() as message:
                self.cancelled.append(message)
                call.reply(Ok())
                stopped = self.streams.pop(message.request_id, None)
                if stopped is not None:
                    self._end(stopped, "cancelled")
            case other:
                raise AssertionError(other)

    def _step(self, stream: Stream) -> None:
        if stream.message.request_id not in self.streams:
            return
        if self.die_after is not None and stream.position >= self.die_after:
            self._close()
            return
        limit = stream.message.sampling.max_tokens
        if stream.position >= min(limit, len(stream.answer)):
            del self.streams[stream.message.request_id]
            self._end(stream, "length" if stream.position >= limit else "stop")
            return
        stream.call.part(Tokens(tokens=[stream.answer[stream.position]]))
        stream.position += 1
        self.thread.loop.call_later(self.interval_s, self._step, stream)

    def _end(self, stream: Stream, reason: str) -> None:
        stream.call.reply(
            GenerateReply(
                finish_reason=reason,  # type: ignore[arg-type]
                num_prompt_tokens=len(stream.message.tokens),
                num_reused_tokens=16 * len(stream.message.hashes),
                num_generated_tokens=stream.position,
                num_published_blocks=3,
                timing=Timing(compute_s=0.5, pulled_bytes=100, loaded_bytes=200),
                prefill_node=NodeId("prefill"),
                decode_node=self.node,
            )
        )


class ScriptedMaster:
    """Plans on the first decode node that is not excluded."""

    def __init__(self, decodes: list[ScriptedDecode], endpoint: str = "tcp://127.0.0.1:*") -> None:
        self.decodes = decodes
        self.models = [describe_model()]
        self.refuse: McError | None = None
        self.nodes: list[ListedNode] = []
        self.requests: list[ListedRequest] = []
        self.pool = EMPTY_POOL
        self.num_looks = 0
        self.is_silent = False
        """About the cluster, not about plans."""
        self.scheduled: list[Schedule] = []
        self.joined: list[Join] = []
        self.thread = LoopThread()
        self.server: Server | None = None
        self._bind = endpoint
        self.endpoint = str(self.thread.call(self._listen))

    def kill(self) -> None:
        self.thread.call(self._close)

    def close(self) -> None:
        self.kill()
        self.thread.close()

    def _listen(self) -> str:
        def hello() -> HelloReply:
            return HelloReply(node=NodeId("master"), role="master", incarnation=Incarnation(1))

        self.server = Server(self.thread.loop, self._bind, hello, self._handle)
        return self.server.endpoint

    def _close(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def _handle(self, call: Call) -> None:
        match call.message:
            case Join() as message:
                self.joined.append(message)
                call.reply(JoinReply(incarnation=Incarnation(1), beat_interval_ms=500))
            case Beat() | Leave():
                call.reply(Ok())
            case ListModels():
                call.reply(ListModelsReply(models=self.models))
            case Schedule() as message:
                self.scheduled.append(message)
                if self.refuse is not None:
                    raise self.refuse
                call.reply(self._plan(message))
            case CacheStat() | ListNodes() | ListRequests() if self.is_silent:
                raise Unavailable("I say <b>nothing</b>")
            case CacheStat():
                call.reply(self.pool)
            case ListNodes():
                self.num_looks += 1
                call.reply(
                    ListNodesReply(
                        incarnation=Incarnation(1), nodes=self.nodes, master=describe_node("master")
                    )
                )
            case ListRequests():
                call.reply(ListRequestsReply(requests=self.requests))
            case other:
                raise AssertionError(other)

    def _plan(self, message: Schedule) -> Plan:
        for decode in self.decodes:
            if decode.node not in message.exclude:
                return Plan(
                    request_id=message.request_id,
                    incarnation=Incarnation(1),
                    prefill=InstanceAddress(
                        node=NodeId("prefill"), control="tcp://127.0.0.1:1", host_id=HostId("h")
                    ),
                    decode=decode.address(),
                    matched=BlockLocations(),
                    put_target=None,
                    predicted_ttft_s=0.25,
                )
        raise Unavailable("no decode node is left", retry_after_ms=2000)


@dataclass(slots=True)
class Bench:
    """A running gateway and what is behind it."""

    app: GatewayApp
    master: ScriptedMaster
    decodes: list[ScriptedDecode]
    url: str
    thread: threading.Thread
    http: httpx.Client

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def post(self, body: object, path: str = "/v1/chat/completions") -> httpx.Response:
        return self.http.post(path, json=body)


def encode(text: str) -> list[int]:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {letter: index + 2 for index, letter in enumerate(letters)}
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [ids[letter] for piece, _ in plain.pre_tokenize_str(text) for letter in piece]


def says(text: str) -> Callable[[Generate], list[int]]:
    return lambda _: [*encode(text), EOS]


@contextlib.contextmanager
def running_gateway(
    directory: Path,
    decodes: list[ScriptedDecode],
    tenants: TenantsSection | None = None,
    access_log: AccessLogSection | None = None,
    **http: object,
) -> Iterator[Bench]:
    master = ScriptedMaster(decodes)
    config = GatewayConfig(
        models={MODEL: str(make_model_directory(directory / "model"))},
        node=NodeSection(id="gateway-test"),
        http=HttpSection(port=0, **http),  # type: ignore[arg-type]
        request=RequestSection(default_max_tokens=300, timeout_s=20.0),
        tenants=tenants or TenantsSection(),
        access_log=access_log or AccessLogSection(),
        master=MasterLinkSection(endpoint=master.endpoint),
    )
    app = GatewayApp(config)
    thread = threading.Thread(target=app.run)
    thread.start()
    url = f"http://{app.address}"
    bench = Bench(app, master, decodes, url, thread, httpx.Client(base_url=url, timeout=20))
    try:
        wait_for(lambda: bench.http.get("/health").status_code == 200)
        yield bench
    finally:
        bench.http.close()
        app.loop.call_soon_threadsafe(app.drain)
        thread.join(10)
        alive = thread.is_alive()
        app.close()
        master.close()
        for decode in decodes:
            decode.close()
        assert not alive, "the gateway did not drain"


TEXT = "Grüße, wörld! 🙂 done."


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    decodes = [ScriptedDecode("decode-a", says(TEXT)), ScriptedDecode("decode-b", says(TEXT))]
    with running_gateway(tmp_path, decodes) as running:
        yield running


HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


def chat(**extra: object) -> dict[str, object]:
    return {"model": MODEL, "messages": HELLO} | extra


def test_openai_client_chats_unchanged(bench: Bench) -> None:
    answer = bench.client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    prompt = bench.decodes[0].generated[0]
    assert answer.usage.prompt_tokens == len(prompt.tokens)
    assert answer.usage.completion_tokens == len(encode(TEXT)) + 1
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 16 * len(prompt.hashes)
    extra = answer.model_extra["mooncake"]  # type: ignore[index]
    assert extra["decode"] == "decode-a"
    assert extra["prefill"] == "prefill"
    assert extra["pulled_bytes"] == 100
    assert extra["loaded_bytes"] == 200
    assert extra["published_blocks"] == 3
    assert extra["timing"]["compute_s"] == 0.5
    assert extra["predicted_ttft_s"] == 0.25
    assert 0 < extra["ttft_s"] < 5


def test_openai_client_streams_unchanged(bench: Bench) -> None:
    stream = bench.client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(encode(TEXT)) + 1
    assert chunks[-1].model_extra["mooncake"]["decode"] == "decode-a"  # type: ignore[index]


def test_last_chunk_carries_the_extras_without_usage(bench: Bench) -> None:
    lines = [line for line in bench.post(chat(stream=True)).text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["mooncake"]["reused_tokens"] == 16 * len(bench.decodes[0].generated[0].hashes)
    assert all("usage" not in json.loads(line[6:]) for line in lines[:-1])


def test_completions_take_text_tokens_and_lists(bench: Bench) -> None:
    client = bench.client
    assert client.completions.create(model=MODEL, prompt="abc").choices[0].text == TEXT
    assert client.completions.create(model=MODEL, prompt=[5, 6, 7]).choices[0].text == TEXT
    assert bench.decodes[0].generated[1].tokens == [5, 6, 7]
    several = client.completions.create(model=MODEL, prompt=["abc", "de"])
    assert [c.text for c in several.choices] == [TEXT, TEXT]
    assert [c.index for c in several.choices] == [0, 1]
    assert several.usage is not None
    assert several.usage.prompt_tokens == 5
    streamed = list(client.completions.create(model=MODEL, prompt=["abc", "de"], stream=True))
    for index in (0, 1):
        assert "".join(c.choices[0].text for c in streamed if c.choices[0].index == index) == TEXT


def test_of_two_namespaces_the_masters_first_is_asked_and_both_are_listed(bench: Bench) -> None:
    old, new = NAMESPACE, b"w" * 16
    for first, second in ((old, new), (new, old)):
        bench.master.models = [describe_model(namespace=first), describe_model(namespace=second)]
        expected = {"namespace": first.hex(), "others": [second.hex()]}
        wait_for(
            lambda expected=expected: (  # type: ignore[misc]  # binds this turn's
                [m["mooncake"] for m in bench.http.get("/v1/models").json()["data"]] == [expected]
            )
        )
        assert bench.post(chat()).status_code == 200
        assert bench.master.scheduled[-1].namespace == first


def test_blocks_are_hashed_from_the_models_namespace(bench: Bench) -> None:
    prompt = "x" * 70
    bench.client.completions.create(model=MODEL, prompt=prompt)
    expected = block_hashes(NAMESPACE, encode(prompt), 16)
    assert len(expected) == 4
    assert bench.master.scheduled[0].hashes == expected
    assert bench.decodes[0].generated[0].hashes == expected
    assert bench.decodes[0].generated[0].cache == "use"


def test_bypass_sends_no_hashes(bench: Bench) -> None:
    bench.post(chat(kv_cache="bypass"))
    assert bench.master.scheduled[0].hashes == []
    assert bench.decodes[0].generated[0].cache == "bypass"
    bench.master.models = [describe_model(is_reuse_safe=False)]
    wait_for(
        lambda: (
            bench.post(chat()).status_code == 200
            and bench.decodes[0].generated[-1].cache == "bypass"
        )
    )


def test_priority_reaches_the_master(bench: Bench) -> None:
    bench.post(chat(priority=-2))
    bench.post(chat())
    assert [message.priority for message in bench.master.scheduled] == [-2, 0]


def test_sampling_reaches_the_node_and_seed_is_always_fixed(bench: Bench) -> None:
    bench.post(chat(temperature=0.5, top_p=0.9, top_k=7, seed=-3, max_tokens=9, ignore_eos=True))
    bench.post(chat())
    bench.post(chat())
    first, second, third = (message.sampling for message in bench.decodes[0].generated)
    assert (first.temperature, first.top_p, first.top_k, first.max_tokens) == (0.5, 0.9, 7, 9)
    assert first.ignore_eos
    assert second.seed != third.seed
    assert second.max_tokens == 300
    assert second.temperature == 1.0


def test_max_tokens_ends_with_length(bench: Bench) -> None:
    body = bench.post(chat(max_completion_tokens=4)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["message"]["content"] == "Grü"
    assert body["usage"]["completion_tokens"] == 4


def test_stop_string_ends_the_text_and_cancels(bench: Bench) -> None:
    bench.decodes[0].interval_s = 0.01
    body = bench.post(chat(stop=["wör", "zzz"])).json()
    assert body["choices"][0]["message"]["content"] == "Grüße, "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["mooncake"]["published_blocks"] == 3
    wait_for(lambda: len(bench.decodes[0].cancelled) == 1)
    assert bench.decodes[0].cancelled[0].is_complete, "nobody gave the answer up"
    assert not bench.decodes[0].streams


def test_leaving_client_cancels(bench: Bench) -> None:
    bench.decodes[0].answer = says("a" * 5000)
    bench.decodes[0].interval_s = 0.02
    with bench.http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
        events = response.iter_bytes()
        next(events)
    wait_for(lambda: bool(bench.decodes[0].cancelled), 20)
    assert not bench.decodes[0].cancelled[0].is_complete
    assert bench.decodes[0].cancelled[0].why == "its client left"
    wait_for(lambda: not bench.decodes[0].streams)
    with contextlib.suppress(httpx.ReadTimeout):
        bench.http.post("/v1/chat/completions", json=chat(), timeout=0.3)
    wait_for(lambda: len(bench.decodes[0].cancelled) == 2, 20)
    wait_for(lambda: bench.app.status().endswith("in_flight=0"))


def test_decode_death_in_mid_stream_is_invisible(bench: Bench) -> None:
    bench.decodes[0].die_after = 5
    stream = bench.client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == TEXT
    extra = chunks[-1].model_extra["mooncake"]  # type: ignore[index]
    assert extra["decode"] == "decode-b"
    assert extra["num_retries"] == 1
    first, second = bench.decodes[0].generated[0], bench.decodes[1].generated[0]
    assert first.sampling == second.sampling
    assert bench.master.scheduled[1].exclude == ["decode-a"]


def test_second_death_ends_the_stream_with_an_error(bench: Bench) -> None:
    for decode in bench.decodes:
        decode.die_after = 5
    began_s = time.monotonic()
    with pytest.raises(openai.APIError, match="closed the connection"):
        list(bench.client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))
    assert time.monotonic() - began_s < 15
    assert bench.http.get("/health").status_code == 200


def test_second_death_without_stream_is_503(bench: Bench) -> None:
    for decode in bench.decodes:
        decode.die_after = 5
    response = bench.post(chat())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "unavailable"
    assert "mc_gateway_retries_total 1.0" in bench.http.get("/metrics").text
    assert int(response.headers["retry-after"]) >= 1


def test_answer_that_changes_on_replay_is_an_error_not_garbage(bench: Bench) -> None:
    bench.decodes[0].die_after = 5
    bench.decodes[1].answer = says("something else")
    text = bench.post(chat(stream=True)).text
    assert "gave other tokens" in text
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("error", [Unavailable("it is draining"), Exhausted("no KV room")])
def test_failure_before_the_first_token_is_retried_elsewhere(bench: Bench, error: McError) -> None:
    bench.decodes[0].refuse = error
    assert bench.post(chat()).json()["mooncake"]["decode"] == "decode-b"
    assert bench.master.scheduled[1].exclude == ["decode-a"]


def test_a_failing_prefill_node_is_avoided_and_three_attempts_are_all(bench: Bench) -> None:
    bench.decodes[0].refuse = TransferError("KV from prefill node p-1: closed")
    response = bench.post(chat())
    assert response.status_code == 503
    assert [message.exclude for message in bench.master.scheduled] == [[], ["prefill"], ["prefill"]]
    assert "p-1" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (Rejected("the TTFT would be 9 s", retry_after_ms=2500), 429, "3"),
        (NotFound("no such model"), 404, None),
        (Exhausted("full", retry_after_ms=100), 429, "1"),
        (Unavailable("no prefill node"), 503, "1"),
    ],
)
def test_masters_refusals_have_statuses(
    bench: Bench, error: McError, status: int, retry_after: str | None
) -> None:
    bench.master.refuse = error
    response = bench.post(chat(stream=True))
    assert response.status_code == status
    assert response.headers.get("retry-after") == retry_after
    assert response.json()["error"]["message"] == error.message


def test_without_a_master_new_requests_fail_fast_and_streams_go_on(bench: Bench) -> None:
    bench.decodes[0].interval_s = 0.05
    with bench.http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
        events = response.iter_text()
        received = [next(events)]
        bench.master.kill()
        began_s = time.monotonic()
        refused = bench.post(chat())
        assert time.monotonic() - began_s < 15
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        received += list(events)
    assert "".join(received).endswith("data: [DONE]\n\n")
    wait_for(lambda: bench.http.get("/health").status_code == 503, 20)
    assert "master" in bench.http.get("/health").json()["reason"]


def test_slow_reader_does_not_hold_others(bench: Bench) -> None:
    bench.decodes[0].answer = says("b" * 3000)
    bench.decodes[0].interval_s = 0.0
    body = json.dumps(chat(stream=True, max_tokens=3000)).encode()
    with socket.create_connection(tuple(bench.app.address.rsplit(":", 1))) as reader:  # type: ignore[arg-type]
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        reader.sendall(head.encode() + body)
        wait_for(lambda: bool(bench.decodes[0].generated))
        bench.decodes[0].answer = says("quick")
        assert bench.post(chat()).json()["choices"][0]["message"]["content"] == "quick"


def test_models_and_health(bench: Bench) -> None:
    assert [model.id for model in bench.client.models.list()] == [MODEL]
    assert bench.client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        bench.client.models.retrieve("other")
    bench.master.models = []
    wait_for(lambda: bench.http.get("/health").status_code == 503)
    assert bench.post(chat()).status_code == 503


def test_metrics_count(bench: Bench) -> None:
    bench.post(chat())
    bench.post(chat(temperature=-1))
    text = bench.http.get("/metrics").text
    assert 'mc_gateway_requests_total{endpoint="chat",status="200"} 1.0' in text
    assert 'mc_gateway_requests_total{endpoint="chat",status="400"} 1.0' in text
    assert "mc_gateway_ttft_seconds_count 1.0" in text
    assert f"mc_gateway_completion_tokens_total {len(encode(TEXT)) + 1}.0" in text


def test_joins_the_master_as_gateway(bench: Bench) -> None:
    node = bench.master.joined[0].node
    assert node.role == "gateway"
    assert node.node == "gateway-test"
    assert node.metrics == bench.app.address


@pytest.mark.parametrize(
    ("path", "change", "status", "param"),
    [
        ("chat/completions", {"model": "nope"}, 404, "model"),
        ("chat/completions", {"temperature": -1}, 400, "temperature"),
        ("chat/completions", {"max_tokens": 5000}, 400, "messages"),
        ("chat/completions", {"max_tokens": "x"}, 400, "max_tokens"),
        ("chat/completions", {"n": 2}, 400, "n"),
        ("chat/completions", {"priority": 11}, 400, "priority"),
        ("chat/completions", {"logprobs": True}, 400, "logprobs"),
        ("chat/completions", {"tools": [{"type": "function"}]}, 400, "tools"),
        ("chat/completions", {"stop": ["a"] * 5}, 400, "stop"),
        ("chat/completions", {"temprature": 1}, 400, "temprature"),
        ("chat/completions", {"messages": []}, 400, "messages"),
        (
            "chat/completions",
            {"messages": [{"role": "cat", "content": "x"}]},
            400,
            "messages[0].role",
        ),
        ("completions", {"prompt": "x" * 5000, "messages": None}, 400, "messages"),
        ("completions", {"prompt": [999]}, 400, "prompt"),
    ],
)
def test_bad_requests_name_the_parameter(
    bench: Bench, path: str, change: dict[str, object], status: int, param: str
) -> None:
    body = chat() if path == "chat/completions" else {"model": MODEL}
    response = bench.post(body | change, f"/v1/{path}")
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}


def test_context_overflow_says_the_numbers(bench: Bench) -> None:
    response = bench.post(
        {"model": MODEL, "prompt": "x" * 4000, "max_tokens": 200}, "/v1/completions"
    )
    message = response.json()["error"]["message"]
    assert "4096" in message
    assert "4000" in message
    assert "200" in message


def test_unknown_paths_and_methods(bench: Bench) -> None:
    assert bench.http.get("/nothing").json()["error"]["type"] == "not_found_error"
    response = bench.http.get("/v1/chat/completions")
    assert response.status_code == 405
    assert "error" in response.json()


def test_body_over_the_limit_is_413(bench: Bench) -> None:
    big = b'{"model": "' + b"x" * 10_000_000 + b'"}'
    url = "/v1/chat/completions"

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(big), 65536):
            yield big[start : start + 65536]

    for content in (big, chunks()):
        response = bench.http.post(url, content=content, timeout=20)
        assert response.status_code == 413
        assert "http.max_body" in response.json()["error"]["message"]
    assert bench.post(chat()).status_code == 200


def test_hostile_bodies_are_4xx(bench: Bench) -> None:
    deep = b'{"model":"tiny","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    hostile: list[bytes] = [
        b"",
        b"null",
        b"[]",
        b"{",
        b'"x"',
        b"\xff\xfe",
        b'{"model":"tiny"}',
        deep,
        deep.replace(b"messages", b"metadata"),
        b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"seed":1e400}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"seed":99999999999999999999999}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":99999999999999999999}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"top_k":4294967296}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"stop":[""]}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":[]},"n":0}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_object"}}',
        b'{"model":"\\u0000","messages":[{"role":"user","content":"x"}]}',
    ]
    for body in hostile:
        for path in ("chat/completions", "completions"):
            response = bench.http.post(f"/v1/{path}", content=body, timeout=20)
            assert 400 <= response.status_code < 500, (body[:100], response.text)
            assert response.json()["error"]["message"]


def test_full_gateway_refuses_with_retry_after(tmp_path: Path) -> None:
    decode = ScriptedDecode("decode-a", says("c" * 500))
    decode.interval_s = 0.02
    with running_gateway(tmp_path, [decode], max_requests=1) as bench:
        with bench.http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as first:
            events = first.iter_bytes()
            next(events)
            refused = bench.post(chat())
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
        decode.answer = says("ok")
        wait_for(lambda: bench.post(chat()).status_code == 200)


def test_drain_finishes_running_streams(tmp_path: Path) -> None:
    decode = ScriptedDecode("decode-a", says("d" * 40))
    decode.interval_s = 0.02
    with running_gateway(tmp_path, [decode]) as bench:
        with bench.http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
            events = response.iter_text()
            received = [next(events)]
            bench.app.loop.call_soon_threadsafe(bench.app.drain)
            received += list(events)
        assert "".join(received).endswith("data: [DONE]\n\n")
        bench.thread.join(5)
        with pytest.raises(httpx.ConnectError):
            bench.http.get("/health")


def test_drain_cuts_what_runs_longer_than_it_may(tmp_path: Path) -> None:
    decode = ScriptedDecode("decode-a", says("d" * 290))
    decode.interval_s = 0.1
    with running_gateway(tmp_path, [decode], drain_s=1.0) as bench:
        with bench.http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
            events = response.iter_text()
            next(events)
            bench.app.loop.call_soon_threadsafe(bench.app.drain)
            began_s = time.monotonic()
            with contextlib.suppress(httpx.RemoteProtocolError):
                list(events)
        bench.thread.join(10)
        assert not bench.thread.is_alive()
        assert 0.5 < time.monotonic() - began_s < 25
    assert decode.cancelled


def test_taken_port_is_one_line(bench: Bench, tmp_path: Path) -> None:
    port = int(bench.app.address.rsplit(":", 1)[1])
    config = GatewayConfig(models={MODEL: str(tmp_path / "model")}, http=HttpSection(port=port))
    with pytest.raises(ConfigError, match=r"http\.port"):
        GatewayApp(config)


FIELDS = st.dictionaries(
    st.sampled_from([*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, "nonsense"]),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
        ),
        max_leaves=5,
    ),
    max_size=4,
)


def test_connections_that_never_send_a_request_are_closed_and_others_are_not(
    tmp_path: Path,
) -> None:
    decodes = [ScriptedDecode("decode-a", says(TEXT))]
    decodes[0].interval_s = 0.03  # the answer takes longer than a head may
    with running_gateway(tmp_path, decodes, head_timeout_s=0.3) as bench:
        host, _, port = bench.app.address.rpartition(":")
        silent, partial = (socket.create_connection((host, int(port)), 5) for _ in range(2))
        partial.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
        for connection in (silent, partial):
            assert connection.recv(1) == b"", "it was kept open"
            connection.close()
        again = HTTPConnection(host, int(port), timeout=5)
        for _ in range(2):
            again.request("GET", "/health")
            response = again.getresponse()
            assert (response.status, bool(response.read())) == (200, True)
        assert again.sock is not None
        again.sock.sendall(b"GET /health HT")
        assert again.sock.recv(1) == b"", "it was kept open"
        again.close()
        answer = bench.post(chat(max_tokens=40, stream=False))
        assert answer.status_code == 200


def test_fuzzed_bodies_are_never_5xx(bench: Bench) -> None:
    @given(fields=FIELDS, is_chat=st.booleans(), cut=st.integers(0, 400))
    @settings(deadline=None, max_examples=250, database=None)
    def post(fields: dict[str, object], is_chat: bool, cut: int) -> None:
        base = chat(max_tokens=3) if is_chat else {"model": MODEL, "prompt": "x", "max_tokens": 3}
        path = "chat/completions" if is_chat else "completions"
        raw = json.dumps(base | fields).encode()
        response = bench.http.post(f"/v1/{path}", content=raw[: max(cut, 1)] if cut < 60 else raw)
        assert response.status_code < 500, (raw, response.text)

    post()
    wait_for(lambda: bench.app.status().endswith("in_flight=0"))


def test_gateway_lives_for_the_watchdog_only_while_http_is_served(bench: Bench) -> None:
    assert isinstance(bench.app, TwoLoops)
    goes_on, is_told = threading.Event(), threading.Event()
    bench.app.in_other_loop(lambda: goes_on.wait(60))
    bench.app.in_other_loop(is_told.set)
    try:
        assert not is_told.wait(0.2)
    finally:
        goes_on.set()
    assert is_told.wait(20)
