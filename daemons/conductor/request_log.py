"""The most recent requests with what was predicted and what came of it, for `mcctl request list` and `explain`."""

from collections import OrderedDict
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Literal

from daemons.core.ids import NodeId, RequestId
from daemons.protocol.request import Candidate, Plan, RequestDone, Schedule
from daemons.protocol.request_list import Ahead, ListedRequest

_MAX_WHY = 200


@dataclass(slots=True)
class LoggedRequest:
    """What was promised of a request when it was planned, and, once it is over, what came of it."""

    request_id: RequestId
    model: str
    planned_s: float
    num_prompt_tokens: int
    num_matched_tokens: int
    prefill: NodeId | None
    decode: NodeId | None
    predicted_ttft_s: float | None
    predicted_tbt_s: float | None
    policy: str
    candidates: list[Candidate]
    is_guess: bool = False
    state: Literal["running", "done", "failed", "rejected"] = "running"
    num_generated_tokens: int = 0
    actual_ttft_s: float | None = None
    actual_tbt_s: float | None = None
    why: str = ""
    is_cancelled: bool = False
    ahead: list[Ahead] = field(default_factory=list)
    num_decode_steps: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0

    def listed(self, *, now_s: float) -> ListedRequest:
        return ListedRequest(
            request_id=self.request_id,
            model=self.model,
            state=self.state,
            age_s=now_s - self.planned_s,
            num_prompt_tokens=self.num_prompt_tokens,
            num_matched_tokens=self.num_matched_tokens,
            num_generated_tokens=self.num_generated_tokens,
            prefill=self.prefill,
            decode=self.decode,
            predicted_ttft_s=self.predicted_ttft_s,
            actual_ttft_s=self.actual_ttft_s,
            policy=self.policy,
            candidates=self.candidates,
            why=self.why,
            predicted_tbt_s=self.predicted_tbt_s,
            actual_tbt_s=self.actual_tbt_s,
            is_guess=self.is_guess,
            is_cancelled=self.is_cancelled,
            ahead=self.ahead,
            num_decode_steps=self.num_decode_steps,
            num_drafted_tokens=self.num_drafted_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that got no plan. Predictions are None where it did not come to them."""

    schedule: Schedule
    why: str
    policy: str
    num_matched_tokens: int = 0
    predicted_ttft_s: float | None = None
    predicted_tbt_s: float | None = None
    candidates: list[Candidate] = field(default_factory=list)


class RequestLog:
    """Keeps `limit` plans and as many rejections, so that a flood of these leaves the plans alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._requests: OrderedDict[RequestId, LoggedRequest] = OrderedDict()
        """An unfinished one is dropped like any other."""
        self._rejected: OrderedDict[RequestId, LoggedRequest] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests) + len(self._rejected)

    def add(self, schedule: Schedule, plan: Plan, *, num_matched_tokens: int, now_s: float) -> None:
        self._rejected.pop(plan.request_id, None)
        self._keep(
            self._requests,
            LoggedRequest(
                request_id=plan.request_id,
                model=schedule.model,
                planned_s=now_s,
                num_prompt_tokens=schedule.num_prompt_tokens,
                num_matched_tokens=num_matched_tokens,
                prefill=plan.prefill.node,
                decode=plan.decode.node,
                predicted_ttft_s=plan.predicted_ttft_s,
                predicted_tbt_s=plan.predicted_tbt_s or None,
                policy=plan.policy,
                candidates=plan.candidates,
                is_guess=plan.is_guess,
            ),
        )

    def reject(self, refused: Refused, *, now_s: float) -> None:
        """A request that was planned before, and failed, stays as that one."""
        schedule = refused.schedule
        if schedule.request_id in self._requests:
            return
        self._keep(
            self._rejected,
            LoggedRequest(
                request_id=schedule.request_id,
                model=schedule.model,
                planned_s=now_s,
                num_prompt_tokens=schedule.num_prompt_tokens,
                num_matched_tokens=refused.num_matched_tokens,
                prefill=None,
                decode=None,
                predicted_ttft_s=refused.predicted_ttft_s,
                predicted_tbt_s=refused.predicted_tbt_s,
                policy=refused.policy,
                candidates=refused.candidates,
                state="rejected",
                why=refused.why[:_MAX_WHY],
            ),
        )

    def finish(self, done: RequestDone, *, tbt_s: float | None = None) -> LoggedRequest | None:
        """The record, now done or failed; None when it is no longer kept. `tbt_s`: between its tokens, if known."""
        request = self._requests.get(done.request_id)
        if request is None:
            return None
        request.state = "done" if done.ok or done.is_cancelled else "failed"
        request.is_cancelled = done.is_cancelled
        request.why = done.why[:_MAX_WHY]
        request.num_generated_tokens = done.num_generated_tokens
        request.actual_tbt_s = tbt_s
        if done.timing is not None:
            request.actual_ttft_s = done.timing.first_token_s or request.actual_ttft_s
            request.num_decode_steps = done.timing.decode_steps
            request.num_drafted_tokens = done.timing.drafted_tokens
            request.num_accepted_tokens = done.timing.accepted_tokens
        return request

    def went_ahead(self, request_id: RequestId, ahead: list[Ahead]) -> None:
        """Its plan set this going."""
        request = self._requests.get(request_id)
        if request is not None:
            request.ahead = ahead

    def fail(self, request_id: RequestId, why: str) -> None:
        request = self._requests.get(request_id)
        if request is not None and request.state == "running":
            request.state, request.why = "failed", why

    def newest(self, limit: int, *, now_s: float) -> list[ListedRequest]:
        """Plans and rejections together."""
        newest = merge(
            reversed(self._requests.values()),
            reversed(self._rejected.values()),
            key=lambda request: -request.planned_s,
        )
        return [
            request.listed(now_s=now_s) for request in islice(newest, min(max(0, limit), len(self)))
        ]

    def _keep(self, among: OrderedDict[RequestId, LoggedRequest], request: LoggedRequest) -> None:
        among.pop(request.request_id, None)
        among[request.request_id] = request
        while len(among) > self.limit:
            among.popitem(last=False)
