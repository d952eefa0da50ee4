"""The most recent plans with what was predicted and what came of it, for `mcctl request list` and `explain`."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from daemons.core.ids import NodeId, RequestId
from daemons.protocol.request import Candidate, ListedRequest, Plan, RequestDone, Schedule


@dataclass(slots=True)
class LoggedRequest:
    request_id: RequestId
    model: str
    planned_s: float
    num_prompt_tokens: int
    num_matched_tokens: int
    prefill: NodeId
    decode: NodeId
    predicted_ttft_s: float
    policy: str
    candidates: list[Candidate]
    state: Literal["running", "done", "failed"] = "running"
    num_generated_tokens: int = 0
    actual_ttft_s: float | None = None
    why: str = ""

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
        )


class RequestLog:
    """Keeps `limit` plans; an unfinished one is dropped like any other."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._requests: OrderedDict[RequestId, LoggedRequest] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, schedule: Schedule, plan: Plan, *, num_matched_tokens: int, now_s: float) -> None:
        self._requests.pop(plan.request_id, None)
        self._requests[plan.request_id] = LoggedRequest(
            request_id=plan.request_id,
            model=schedule.model,
            planned_s=now_s,
            num_prompt_tokens=schedule.num_prompt_tokens,
            num_matched_tokens=num_matched_tokens,
            prefill=plan.prefill.node,
            decode=plan.decode.node,
            predicted_ttft_s=plan.predicted_ttft_s,
            policy=plan.policy,
            candidates=plan.candidates,
        )
        while len(self._requests) > self.limit:
            self._requests.popitem(last=False)

    def finish(self, done: RequestDone) -> LoggedRequest | None:
        """The record, now done or failed; None when it is no longer kept."""
        request = self._requests.get(done.request_id)
        if request is None:
            return None
        request.state = "done" if done.ok else "failed"
        request.why = done.why[:200]
        request.num_generated_tokens = done.num_generated_tokens
        if done.timing is not None and done.timing.first_token_s > 0:
            request.actual_ttft_s = done.timing.first_token_s
        return request

    def fail(self, request_id: RequestId, why: str) -> None:
        request = self._requests.get(request_id)
        if request is not None and request.state == "running":
            request.state, request.why = "failed", why

    def newest(self, limit: int, *, now_s: float) -> list[ListedRequest]:
        newest = list(reversed(self._requests.values()))[: max(0, limit)]
        return [request.listed(now_s=now_s) for request in newest]
