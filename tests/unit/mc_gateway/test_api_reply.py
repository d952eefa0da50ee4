"""The shapes OpenAI's own types accept, and the extras beside them."""

import json

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from daemons.client.generate import GenerationEnd
from daemons.core.errors import (
    Conflict,
    Exhausted,
    McError,
    NotFound,
    ProtocolError,
    Rejected,
    TransferError,
    Unavailable,
)
from daemons.core.ids import HostId, Incarnation, NodeId, RequestId
from daemons.mc_gateway.api_error import bad_request, from_mc_error
from daemons.mc_gateway.api_reply import (
    ChatShape,
    ChoiceResult,
    CompletionShape,
    Envelope,
    describe_end,
)
from daemons.protocol.failure import Unwelcome
from daemons.protocol.packed import BlockLocations
from daemons.protocol.request import GenerateReply, InstanceAddress, Plan, Timing

ADDRESS = InstanceAddress(node=NodeId("n"), control="tcp://h:1", host_id=HostId("h"))
PLAN = Plan(
    request_id=RequestId("r"),
    incarnation=Incarnation(1),
    prefill=ADDRESS,
    decode=ADDRESS,
    matched=BlockLocations(),
    put_target=None,
    predicted_ttft_s=0.5,
)
REPLY = GenerateReply(
    finish_reason="stop",
    num_prompt_tokens=10,
    num_reused_tokens=8,
    num_generated_tokens=2,
    num_published_blocks=1,
    timing=Timing(load_s=0.25, pulled_bytes=7, loaded_bytes=9),
    prefill_node=NodeId("n"),
    decode_node=NodeId("n"),
)
MOONCAKE = describe_end(GenerationEnd(RequestId("r"), PLAN, REPLY, 1), ttft_s=0.125)
RESULT = ChoiceResult("hé", "stop", 10, 2, MOONCAKE)


def envelope(*, has_usage: bool = False) -> Envelope:
    return Envelope("id-1", "m", 1_700_000_000, has_usage)


def event(raw: bytes) -> dict[str, object]:
    assert raw.startswith(b"data: ")
    assert raw.endswith(b"\n\n")
    decoded = json.loads(raw[6:])
    assert isinstance(decoded, dict)
    return decoded


def test_whole_chat() -> None:
    answer = ChatCompletion.model_validate_json(ChatShape(envelope()).whole([RESULT]))
    assert answer.choices[0].message.content == "hé"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 12
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 8


def test_whole_completion_sums_usage_over_choices() -> None:
    answer = Completion.model_validate_json(CompletionShape(envelope()).whole([RESULT, RESULT]))
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_chat_events() -> None:
    shape = ChatShape(envelope())
    opening = shape.opening(0)
    assert opening is not None
    for raw in (opening, shape.delta(0, "x"), shape.finish(0, "length", None)):
        ChatCompletionChunk.model_validate(event(raw))
        assert "usage" not in event(raw)
    assert "mooncake" not in event(shape.finish(0, "stop", None))
    assert event(shape.finish(0, "stop", MOONCAKE))["mooncake"] == {
        "request_id": "r",
        "prefill": "n",
        "decode": "n",
        "reused_tokens": 8,
        "published_blocks": 1,
        "ttft_s": 0.125,
        "predicted_ttft_s": 0.5,
        "pulled_bytes": 7,
        "loaded_bytes": 9,
        "num_retries": 1,
        "timing": {name: getattr(REPLY.timing, name) for name in Timing.__struct_fields__},
    }


def test_usage_event_and_null_before_it() -> None:
    shape = ChatShape(envelope(has_usage=True))
    assert event(shape.delta(0, "x"))["usage"] is None
    last = event(shape.usage([RESULT]))
    assert last["choices"] == []
    assert last["usage"] is not None
    assert last["mooncake"] is not None


def test_end_without_the_nodes_account() -> None:
    extra = describe_end(GenerationEnd(RequestId("r"), PLAN, None, 0), ttft_s=1.0)
    assert extra.decode == "n"
    assert extra.reused_tokens == 0


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (Rejected("x", retry_after_ms=1500), 429, 2),
        (Rejected("x"), 400, None),
        (Unwelcome("x"), 503, 1),
        (NotFound("x"), 404, None),
        (Exhausted("x"), 429, 1),
        (Unavailable("x", retry_after_ms=5000), 503, 5),
        (TransferError("x"), 503, 1),
        (ProtocolError("x"), 500, None),
        (Conflict("x"), 500, None),
        (McError("x"), 500, None),
    ],
)
def test_statuses_of_families(error: McError, status: int, retry_after: int | None) -> None:
    shown = from_mc_error(error)
    assert (shown.status, shown.retry_after_s) == (status, retry_after)
    assert set(json.loads(shown.body())["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "tcp://10.0.0.7:7700 does not answer; is it running?",
            "a node of the cluster does not answer; is it running?",
        ),
        (
            "to tcp://[fd00::7]:77, ipc:///run/a.",
            "to a node of the cluster, a node of the cluster.",
        ),
        ("10.0.0.7:80 or [fd00::7]:80 left", "a node of the cluster or a node of the cluster left"),
        ("no instance serves 'tiny' now", "no instance serves 'tiny' now"),
    ],
)
def test_an_error_of_the_cluster_names_no_address_inside_it(message: str, shown: str) -> None:
    for cause in (Unavailable(message), Exhausted(message)):
        error = from_mc_error(cause)
        assert json.loads(error.body())["error"]["message"] == shown
        assert error.message == message, "for the log"
    mine = bad_request("`stop` is tcp://x:1")
    assert json.loads(mine.body())["error"]["message"] == mine.message


def test_an_error_quotes_only_so_much_of_what_was_sent() -> None:
    body = json.loads(bad_request(f"`stop` is {'x' * 70_000}").body())
    assert len(body["error"]["message"]) < 1000
