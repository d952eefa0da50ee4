"""What is said of a request that ended: to who asked, to the master, and of one whose time was too short."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from daemons.core.errors import Exhausted
from daemons.core.ids import NodeId, RequestId
from daemons.mc_decode.endings import answered, failed, too_late
from daemons.mc_decode.request import Request
from daemons.protocol.request import Timing

NODE = NodeId("decode-1")


def request(**fields: Any) -> Request:
    plan = SimpleNamespace(prefill=SimpleNamespace(node=NodeId("prefill-1")))
    made = {
        "message": SimpleNamespace(request_id=RequestId("r"), plan=plan),
        "reply": SimpleNamespace(num_reused_tokens=64, num_published_blocks=2),
        "tokens": [5, 6, 7],
        "num_prompt_tokens": 100,
        "num_published": 1,
        "given_up": None,
        "state": "decoding",
    }
    return cast(Request, SimpleNamespace(**(made | fields)))


def test_who_asked_and_the_master_are_told_the_same_of_an_answer() -> None:
    reply, done = answered(request(), "length", Timing(), NODE)
    assert (reply.num_prompt_tokens, reply.num_published_blocks) == (100, 3)
    assert (reply.prefill_node, reply.decode_node) == ("prefill-1", NODE)
    assert reply.num_reused_tokens == done.num_reused_tokens == 64
    assert reply.num_generated_tokens == done.num_generated_tokens == 3
    assert (done.ok, done.is_cancelled, done.why) == (True, False, "")


def test_the_master_is_told_who_gave_an_answer_up_or_else_why_it_failed() -> None:
    _, cut = answered(request(given_up="its gateway is gone"), "cancelled", Timing(), NODE)
    assert (cut.ok, cut.is_cancelled, cut.why) == (True, True, "its gateway is gone")
    gone = failed(request(given_up="it was cancelled"), Exhausted("full"), NODE)
    assert (gone.ok, gone.is_cancelled, gone.why) == (False, True, "it was cancelled")
    broken = failed(request(), Exhausted("full"), NODE)
    assert (broken.ok, broken.is_cancelled) == (False, False)
    assert "full" in broken.why


@pytest.mark.parametrize(
    ("state", "doing"),
    [
        ("waiting", "waited for KV room behind 4 others"),
        ("filling", "waited for its prefill"),
        ("decoding", "was at token 3"),
    ],
)
def test_a_request_whose_time_ended_says_where_it_was(state: str, doing: str) -> None:
    error = too_late(request(state=state), 2.04, 4, NODE)
    assert error.message.startswith("the request's time ended after 2.0 s on decode node decode-1,")
    assert f"where it {doing}; ask for less" in error.message
