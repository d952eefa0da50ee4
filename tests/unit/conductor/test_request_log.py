"""The newest plans, bounded."""

from daemons.conductor.request_log import RequestLog
from daemons.core.ids import HostId, Incarnation, NodeId, RequestId
from daemons.protocol.request import InstanceAddress, Plan, RequestDone, Schedule, Timing


def logged(log: RequestLog, name: str, now_s: float = 0) -> None:
    where = InstanceAddress(node=NodeId("p"), control="", host_id=HostId("h"))
    asked = Schedule(
        request_id=RequestId(name), model="m", num_prompt_tokens=10, max_tokens=5, hashes=[]
    )
    plan = Plan(
        request_id=RequestId(name),
        incarnation=Incarnation(1),
        prefill=where,
        decode=where,
        matched=[],
        put_target=None,
        predicted_ttft_s=0.5,
    )
    log.add(asked, plan, num_matched_tokens=0, now_s=now_s)


def test_log_keeps_the_newest_and_lists_them_first() -> None:
    log = RequestLog(3)
    for name in "abcde":
        logged(log, name)
    assert [request.request_id for request in log.newest(2, now_s=1)] == ["e", "d"]
    assert len(log) == 3
    assert log.newest(-1, now_s=1) == []
    assert log.finish(RequestDone(request_id=RequestId("a"), node=NodeId("d"), ok=True)) is None


def test_outcome_is_kept_beside_the_prediction() -> None:
    log = RequestLog(3)
    logged(log, "a")
    log.finish(
        RequestDone(
            request_id=RequestId("a"),
            node=NodeId("d"),
            ok=False,
            why="x" * 1000,
            timing=Timing(first_token_s=0.7),
        )
    )
    (request,) = log.newest(10, now_s=4)
    assert (request.state, request.actual_ttft_s, request.age_s) == ("failed", 0.7, 4)
    assert len(request.why) == 200
    log.fail(RequestId("a"), "later")
    assert log.newest(1, now_s=4)[0].why != "later"
