"""The figures of `mcctl top`, from two looks."""

import re

import msgspec
import pytest
from rich.console import Console

from daemons.core.ids import Epoch, HostId, Incarnation, NodeId, RequestId
from daemons.protocol.cache import CacheStatReply
from daemons.protocol.node import InstanceLoad, ListedNode, ListNodesReply, NodeDescription, Role
from daemons.protocol.request_list import ListedRequest
from mcctl.commands.top import picture
from mcctl.views.top import SHOWN_REQUESTS, Look, frame


def described(name: str, role: Role) -> NodeDescription:
    return NodeDescription(
        node=NodeId(name), role=role, host="h", host_id=HostId("h"), epoch=Epoch(1), control="tcp://m:1", pid=1,
        software="1",
    )  # fmt: skip


def listed(name: str, role: Role, load: InstanceLoad | None = None) -> ListedNode:
    return ListedNode(
        node=described(name, role), state="alive", load=load, used_bytes=5, capacity_bytes=10, num_blocks=2,
        joined_s=1.0, last_beat_s=0.1,
    )  # fmt: skip


def request(number: int, ttft_s: float | None = None, matched: int = 0) -> ListedRequest:
    return ListedRequest(
        request_id=RequestId(f"r{number}"), model="m", state="running" if ttft_s is None else "done", age_s=1.0,
        num_prompt_tokens=100, num_matched_tokens=matched, num_generated_tokens=3, prefill=NodeId("p"),
        decode=NodeId("d"), predicted_ttft_s=0.5, actual_ttft_s=ttft_s, policy="time", candidates=[],
    )  # fmt: skip


def look(
    taken_s: float, requests: list[ListedRequest], *, asked: int = 0, found: int = 0, stored: int = 0,
    incarnation: int = 1,
) -> Look:  # fmt: skip
    pool = CacheStatReply(
        num_blocks=7, num_replicas=7, used_bytes=70, capacity_bytes=100, num_leased=0, num_lookups=1,
        num_lookup_blocks=asked, num_hit_blocks=found, num_stored=stored, num_evicted=0, num_cleared=0,
        blocks_by_model={},
    )  # fmt: skip
    nodes = ListNodesReply(
        incarnation=Incarnation(incarnation),
        master=described("master", "master"),
        nodes=[
            listed("p0", "prefill", InstanceLoad(num_queued=2, queued_tokens=300)),
            listed("c0", "cachenode"),
        ],
    )
    return Look(taken_s, nodes, pool, requests)


def test_the_first_frame_has_no_rates_but_totals() -> None:
    shown = frame(look(1.0, [request(1, 0.2), request(2)], asked=10, found=4, stored=9), None)
    assert (shown.requests_per_s, shown.stored_per_s) == (0.0, 0.0)
    assert shown.hit_fraction == pytest.approx(0.4)
    assert (shown.running, shown.failed, shown.num_blocks) == (1, 0, 7)
    assert [line.role for line in shown.nodes] == ["cachenode", "prefill"]
    assert (shown.nodes[1].num_queued, shown.nodes[1].queued_tokens) == (2, 300)


def test_rates_are_of_what_came_since_the_look_before() -> None:
    first = look(1.0, [request(1, 0.2)], asked=100, found=0, stored=10)
    second = look(
        3.0, [request(3), request(2, 0.4), request(1, 0.2)], asked=140, found=30, stored=16
    )
    shown = frame(second, first)
    assert shown.requests_per_s == pytest.approx(1.0)
    assert shown.stored_per_s == pytest.approx(3.0)
    assert shown.hit_fraction == pytest.approx(0.75)


def test_a_new_master_counts_anew() -> None:
    first = look(1.0, [], asked=100, found=100, stored=1000)
    shown = frame(look(2.0, [], asked=10, found=5, stored=3, incarnation=2), first)
    assert (shown.stored_per_s, shown.hit_fraction) == (0.0, 0.5)


def test_times_and_reuse_of_recent_requests() -> None:
    requests = [request(number, ttft_s=number / 10, matched=50) for number in range(1, 21)]
    shown = frame(look(1.0, requests), None)
    assert shown.ttft_p50_s == pytest.approx(1.05)
    assert shown.ttft_p90_s == pytest.approx(1.81)
    assert shown.reused_fraction == pytest.approx(0.5)
    assert len(shown.requests) == SHOWN_REQUESTS
    assert frame(look(1.0, []), None).ttft_p90_s == 0.0


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_picture_breaks_no_word_of_a_table(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = frame(look(1.0, [request(1, 0.2), request(2)], asked=10, found=4, stored=9), None)
    line = msgspec.structs.replace(
        shown.nodes[0], node="cachenode-12", is_draining=True, host="host-7.example.org", used_bytes=200 << 20,
        capacity_bytes=1 << 30,
    )  # fmt: skip
    asked = msgspec.structs.replace(shown.requests[0], request_id="0123456789abcdef")
    shown = msgspec.structs.replace(shown, nodes=[line], requests=[asked])
    target = Console(width=width)
    target.print(picture(shown, target))
    out = capsys.readouterr().out
    assert re.search(r"cachenode-12 .*draining .* 200(\.0)? MiB of 1(\.0)? GiB", out)
    assert re.search(r"0123456789abcdef +\w+ ", out)
    assert all(len(text) <= width for text in out.splitlines())
    assert ("columns left out, no room" in out) == (width < 160)
