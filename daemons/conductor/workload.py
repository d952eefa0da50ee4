"""Predicted work: what was scheduled on each instance and is not done yet, corrected by what instances report.

A prefill instance serves in order, so its queue is the time until its last promised work ends. A decode instance is
a set of reservations. Entries leave with RequestDone, with their instance, when it says that it is idle, or in time.
What is promised to an instance is also written to its row of the InstanceTable, from which decisions are made.
"""

from dataclasses import dataclass, field

from daemons.conductor.instance_table import InstanceTable
from daemons.conductor.latency import CostModel
from daemons.core.ids import NodeId, RequestId
from daemons.protocol.node import InstanceLoad

ARRIVE_S = 0.3
"""A request that was planned since may not have reached its prefill instance when that sent its beat."""
SETTLE_S = 2.0
"""How long a planned request may take to reach its instances; before that, being idle says nothing about it."""
MAX_REQUEST_S = 3600.0
"""A request whose end was never reported is forgotten after this."""
MAX_REQUESTS = 65_536
MAX_QUEUED_TOKENS = 1 << 31
_MEAN_DECAY = 0.98
_RATIO_DECAY = 0.9
"""Quick: while load grows, every request is slower than predicted."""
_MOST_OFF = 4.0
"""A prediction that is wrong by more says nothing about the next."""


@dataclass(frozen=True, slots=True)
class Work:
    """One request's share of its two instances."""

    request_id: RequestId
    prefill: NodeId
    decode: NodeId
    prefill_s: float
    num_tokens: int
    """KV it may come to hold on decode."""
    decode_s: float
    started_s: float
    context_tokens: int = 0
    """KV that its decode steps read, on average."""
    step_s: float = 0.0
    """Predicted time between its tokens."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Of the prompt, as planned."""
    load_s: float = 0.0
    helpers: tuple[NodeId, ...] = ()
    """Prefill instances that share it, each for all of `prefill_s`; they begin together."""

    def work_s(self, cost: CostModel) -> float:
        """`prefill_s` by what is known of the instance now; what several share stays as planned."""
        if self.helpers or not self.num_prompt_tokens:
            return self.prefill_s
        return max(self.load_s, cost.prefill_s(self.num_prompt_tokens, self.num_cached_tokens))

    @property
    def prefills(self) -> tuple[NodeId, ...]:
        return self.prefill, *self.helpers


@dataclass(slots=True)
class _Load:
    busy_until_s: float = 0.0
    last_planned_s: float = 0.0
    reserved_tokens: int = 0
    requests: dict[RequestId, float] = field(default_factory=dict)
    """Until when each is predicted to occupy this instance."""
    slots: dict[RequestId, int] = field(default_factory=dict)
    """Of a decode instance: where each stands in the table."""
    free_slots: list[int] = field(default_factory=list)


class Workload:
    """Bounded by MAX_REQUESTS; the oldest is forgotten first."""

    def __init__(self, table: InstanceTable) -> None:
        self._table = table
        self._work: dict[RequestId, Work] = {}
        self._loads: dict[NodeId, _Load] = {}
        self.mean_decode_s = 0.0
        """How long the latest requests were with their decode instance; 0 until one has ended."""
        self.tbt_ratio = 1.0
        """Of the time between tokens that the latest requests had to what was predicted: those who came after them, and
        the hand-over of their KV, are not in the prediction.
        """
        self.mean_tokens = 0.0
        """KV that the latest requests may come to hold; 0 before the first."""
        self.mean_prefill_s = 0.0
        """What the latest requests keep a prefill instance busy for; 0 before the first."""

    def __len__(self) -> int:
        return len(self._work)

    def add(self, work: Work) -> None:
        self.remove(work.request_id, now_s=work.started_s)
        if len(self._work) >= MAX_REQUESTS:
            self.remove(next(iter(self._work)), now_s=work.started_s)
        self._work[work.request_id] = work
        self.mean_tokens = _mean(self.mean_tokens, work.num_tokens)
        self.mean_prefill_s = _mean(self.mean_prefill_s, work.prefill_s)
        prefills = [self._loads.setdefault(node, _Load()) for node in work.prefills]
        free_s = max(prefill.busy_until_s for prefill in prefills)
        filled_s = max(free_s, work.started_s) + work.prefill_s
        for node, prefill in zip(work.prefills, prefills, strict=True):
            prefill.busy_until_s = filled_s
            prefill.last_planned_s = work.started_s
            prefill.requests[work.request_id] = filled_s
            self._write(node, prefill)
        decode = self._loads.setdefault(work.decode, _Load())
        decode.reserved_tokens += work.num_tokens
        decode.last_planned_s = work.started_s
        end_s = filled_s + work.decode_s
        decode.requests[work.request_id] = end_s
        self._take_slot(work, decode, filled_s, end_s)
        self._write(work.decode, decode)

    def finish(
        self, request_id: RequestId, *, now_s: float, tbt_s: float = 0.0, has_tokens: bool = True
    ) -> Work | None:
        """It has ended. `tbt_s`: the time between its tokens, where that is known. Who got no token does not say how
        long decoding takes.
        """
        work = self._work.get(request_id)
        decode = self._loads.get(work.decode) if work is not None and has_tokens else None
        if work is not None and decode is not None and request_id in decode.requests:
            began_s = decode.requests[request_id] - work.decode_s
            self.mean_decode_s = _mean(self.mean_decode_s, max(0.0, now_s - began_s))
        if work is not None and work.step_s > 0 and tbt_s > 0:
            ratio = min(_MOST_OFF, max(1 / _MOST_OFF, tbt_s / work.step_s))
            self.tbt_ratio = _mean(self.tbt_ratio, ratio, _RATIO_DECAY)
        return self.remove(request_id, now_s=now_s)

    def remove(self, request_id: RequestId, *, now_s: float) -> Work | None:
        """It has ended: what it did not use of its prefill comes off the queue."""
        work = self._work.pop(request_id, None)
        if work is None:
            return None
        for node in work.prefills:
            prefill = self._loads.get(node)
            if prefill is not None:
                until_s = prefill.requests.pop(request_id, 0.0)
                unused_s = min(work.prefill_s, max(0.0, until_s - now_s))
                prefill.busy_until_s -= unused_s
                self._write(node, prefill)
        decode = self._loads.get(work.decode)
        if decode is not None and decode.requests.pop(request_id, None) is not None:
            decode.reserved_tokens -= work.num_tokens
            self._free_slot(work, decode)
            self._write(work.decode, decode)
        return work

    def drop_node(self, node: NodeId, *, now_s: float) -> list[Work]:
        """The node is gone, and with it every request that was planned on it."""
        gone = [work for work in self._work.values() if node in (*work.prefills, work.decode)]
        for work in gone:
            self.remove(work.request_id, now_s=now_s)
        if self._loads.pop(node, None) is not None:
            self._write(node, _Load())
        return gone

    def hear(self, node: NodeId, load: InstanceLoad, *, now_s: float) -> None:
        """An instance that says it is idle has none of what it was sent a while ago, whoever failed to say so."""
        row = self._table.row_by_node.get(node)
        if row is not None:
            self._table.num_reported[row] = min(
                load.num_queued + load.num_running, MAX_QUEUED_TOKENS
            )
        ours = self._loads.get(node)
        num_ours = len(ours.requests) if ours is not None else 0
        if row is not None:
            # What was planned here is known better than from its last beat; the rest is of an earlier master.
            is_all_ours = load.num_queued + load.num_running <= num_ours
            self._table.reported_queue_s[row] = (
                0.0 if is_all_ours else _reported_s(load, self._table.cost(node))
            )
        if ours is None:
            return
        if row is not None and self._table.described(row).role == "prefill":
            self._correct_queue(node, ours, load.num_queued + load.num_running, now_s)
        if load.num_queued or load.num_running:
            return
        if now_s - ours.last_planned_s > SETTLE_S:
            ours.busy_until_s = now_s
            for request_id in list(ours.requests):
                work = self._work[request_id]
                if work.decode == node:
                    self.remove(request_id, now_s=now_s)
                else:
                    del ours.requests[request_id]
            self._write(node, ours)

    def _correct_queue(self, node: NodeId, ours: _Load, num_there: int, now_s: float) -> None:
        """It serves in order, so what it has are the newest, and at most one of them is begun: its queue is no longer
        than all of them, and no shorter than all but one. Those before them are computed, whatever was predicted.
        Each counts by what is known now: since it was planned the instance may have become slower.
        """
        num_left, cost = num_there, self._table.cost(node)
        newest, works_s = list(reversed(ours.requests)), list[float]()
        for request_id in newest:
            work = self._work[request_id]
            is_on_its_way = now_s - work.started_s < ARRIVE_S
            if not is_on_its_way and num_left == 0:
                break
            num_left -= not is_on_its_way
            works_s.append(work.work_s(cost))
        if num_left > 0:
            return  # it has more than was planned here
        if (
            works_s
        ):  # the oldest may have been begun: of that one, what was left by the last account
            left_s = ours.requests[newest[len(works_s) - 1]] - now_s
            works_s[-1] = min(works_s[-1], max(0.0, left_s))
        ours.busy_until_s = end_s = now_s + sum(works_s)
        for request_id, work_s in zip(newest, works_s, strict=False):
            ours.requests[request_id] = end_s
            end_s -= work_s
        for request_id in newest[len(works_s) :]:
            ours.requests[request_id] = min(now_s, ours.requests[request_id])
        self._write(node, ours)

    def expire(self, *, now_s: float) -> list[Work]:
        """What is older than MAX_REQUEST_S; entries are in the order they were planned."""
        gone = []
        for work in self._work.values():
            if now_s - work.started_s < MAX_REQUEST_S:
                break
            gone.append(work)
        for work in gone:
            self.remove(work.request_id, now_s=now_s)
        return gone

    def decode_wait_s(
        self, node: NodeId, capacity_tokens: int, needed_tokens: int, *, now_s: float
    ) -> float:
        """How long until so many tokens are predicted to be free; 0 when they are now."""
        ours = self._loads.get(node)
        left = (ours.reserved_tokens if ours is not None else 0) + needed_tokens
        if ours is None or capacity_tokens == 0 or left <= capacity_tokens:
            return 0.0
        for request_id, until_s in sorted(ours.requests.items(), key=lambda entry: entry[1]):
            left -= self._work[request_id].num_tokens
            if left <= capacity_tokens:
                return max(0.0, until_s - now_s)
        return 0.0

    def _take_slot(self, work: Work, decode: _Load, begin_s: float, end_s: float) -> None:
        row = self._table.row_by_node.get(work.decode)
        if row is None:
            return
        slot = decode.free_slots.pop() if decode.free_slots else len(decode.slots)
        if self._table.decode_slots.has_room(slot):
            decode.slots[work.request_id] = slot
            self._table.decode_slots.take(
                row, slot, begin_s=begin_s, end_s=end_s, num_tokens=work.context_tokens
            )

    def _free_slot(self, work: Work, decode: _Load) -> None:
        row = self._table.row_by_node.get(work.decode)
        slot = decode.slots.pop(work.request_id, None)
        if slot is not None and row is not None:
            decode.free_slots.append(slot)
            self._table.decode_slots.free(row, slot)

    def _write(self, node: NodeId, load: _Load) -> None:
        row = self._table.row_by_node.get(node)
        if row is not None:
            self._table.busy_until_s[row] = load.busy_until_s
            self._table.num_promised[row] = len(load.requests)
            self._table.reserved_tokens[row] = load.reserved_tokens


def _reported_s(load: InstanceLoad, cost: CostModel) -> float:
    """Of prompts of which only the sum is known: as if each were of average length."""
    num_prompts = max(1, min(load.num_queued + load.num_running, MAX_REQUESTS))
    mean_tokens = min(max(0, load.queued_tokens), MAX_QUEUED_TOKENS) // num_prompts
    return num_prompts * cost.prefill_s(mean_tokens, 0) if mean_tokens else 0.0


def _mean(before: float, value: float, decay: float = _MEAN_DECAY) -> float:
    return decay * before + (1 - decay) * value if before else value
