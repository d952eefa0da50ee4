"""What `mcctl top` shows, computed from two looks at the master. Pure; drawing it is for render and rich."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Final

import msgspec

from daemons.protocol.cache import CacheStatReply
from daemons.protocol.node import ListNodesReply
from daemons.protocol.request_list import ListedRequest

SHOWN_REQUESTS: Final = 12


@dataclass(frozen=True, slots=True)
class Look:
    """One answer of the master to each question; `taken_s` by a steady clock."""

    taken_s: float
    nodes: ListNodesReply
    pool: CacheStatReply
    requests: list[ListedRequest]


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    role: str
    host: str
    state: str
    used_bytes: int
    capacity_bytes: int
    num_blocks: int
    num_running: int
    num_queued: int
    queued_tokens: int
    step_s: float
    """Decode: of one token of all its sequences; 0 until measured."""
    is_draining: bool = False


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    state: str
    age_s: float
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    prefill: str | None
    decode: str | None
    predicted_ttft_s: float | None
    actual_ttft_s: float | None


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One picture; with `--output json` one object a line. Rates are since the look before, 0 in the first frame."""

    master: str
    incarnation: int
    requests_per_s: float
    running: int
    failed: int
    """Of the recent requests that the master keeps."""
    ttft_p50_s: float
    ttft_p90_s: float
    reused_fraction: float
    """Of the prompt tokens of recent requests."""
    hit_fraction: float
    """Of the blocks looked up since the look before; of all since the master began, in the first frame."""
    asked_blocks: int = 0
    """Those that were looked up; where it is 0 the fraction says nothing."""
    stored_per_s: float
    evicted_per_s: float
    num_blocks: int
    used_bytes: int
    capacity_bytes: int
    nodes: list[NodeLine]
    requests: list[RequestLine]


def frame(now: Look, before: Look | None) -> Frame:
    """Counters of a master that has begun anew in between are taken as they are."""
    if before is not None and before.nodes.incarnation != now.nodes.incarnation:
        before = None
    done = [request for request in now.requests if request.actual_ttft_s is not None]
    p50_s, p90_s = _p50_p90([request.actual_ttft_s or 0.0 for request in done])
    prompt = sum(request.num_prompt_tokens for request in now.requests)
    return Frame(
        master=now.nodes.master.control,
        incarnation=now.nodes.incarnation,
        requests_per_s=_rate(_num_new(now, before), now, before),
        running=sum(request.state == "running" for request in now.requests),
        failed=sum(request.state == "failed" for request in now.requests),
        ttft_p50_s=p50_s,
        ttft_p90_s=p90_s,
        reused_fraction=sum(request.num_matched_tokens for request in now.requests)
        / max(1, prompt),
        hit_fraction=_hit_fraction(now.pool, None if before is None else before.pool),
        asked_blocks=_grown("num_lookup_blocks", now, before),
        stored_per_s=_rate(_grown("num_stored", now, before), now, before),
        evicted_per_s=_rate(_grown("num_evicted", now, before), now, before),
        num_blocks=now.pool.num_blocks,
        used_bytes=now.pool.used_bytes,
        capacity_bytes=now.pool.capacity_bytes,
        nodes=_node_lines(now.nodes),
        requests=[_request_line(request) for request in now.requests[:SHOWN_REQUESTS]],
    )


def _num_new(now: Look, before: Look | None) -> int:
    """Plans that were not there before; when all are new there may have been more than the master lists."""
    known = {request.request_id for request in before.requests} if before is not None else set()
    return sum(request.request_id not in known for request in now.requests)


def _grown(counter: str, now: Look, before: Look | None) -> int:
    count: int = getattr(now.pool, counter)
    return count - (getattr(before.pool, counter) if before is not None else 0)


def _rate(count: int, now: Look, before: Look | None) -> float:
    if before is None or now.taken_s <= before.taken_s:
        return 0.0
    return max(0, count) / (now.taken_s - before.taken_s)


def _hit_fraction(now: CacheStatReply, before: CacheStatReply | None) -> float:
    asked = now.num_lookup_blocks - (before.num_lookup_blocks if before is not None else 0)
    found = now.num_hit_blocks - (before.num_hit_blocks if before is not None else 0)
    return found / asked if asked > 0 else 0.0


def _p50_p90(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return (values[0], values[0]) if values else (0.0, 0.0)
    cuts = quantiles(values, n=10, method="inclusive")
    return cuts[4], cuts[8]


def _node_lines(reply: ListNodesReply) -> list[NodeLine]:
    lines = []
    for listed in reply.nodes:
        load = listed.load
        lines.append(
            NodeLine(
                node=listed.node.node,
                role=listed.node.role,
                host=listed.node.host,
                state=listed.state,
                used_bytes=listed.used_bytes,
                capacity_bytes=listed.capacity_bytes,
                num_blocks=listed.num_blocks,
                num_running=load.num_running if load is not None else 0,
                num_queued=load.num_queued if load is not None else 0,
                queued_tokens=load.queued_tokens if load is not None else 0,
                step_s=load.decode_step_s if load is not None else 0.0,
                is_draining=listed.is_draining,
            )
        )
    return sorted(lines, key=lambda line: (line.role, line.node))


def _request_line(request: ListedRequest) -> RequestLine:
    return RequestLine(
        request_id=request.request_id,
        state=request.outcome,
        age_s=request.age_s,
        prompt_tokens=request.num_prompt_tokens,
        reused_tokens=request.num_matched_tokens,
        generated_tokens=request.num_generated_tokens,
        prefill=request.prefill,
        decode=request.decode,
        predicted_ttft_s=request.predicted_ttft_s,
        actual_ttft_s=request.actual_ttft_s,
    )
