"""The newest plans, bounded."""

from daemons.conductor.request_log import Refused, RequestLog
from daemons.core.ids import HostId, Incarnation, NodeId, RequestId
from daemons.protocol.packed import BlockLocations
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
        matched=BlockLocations(),
        put_target=None,
        predicted_ttft_s=0.5,
        predicted_tbt_s=0.03,
    )
    log.add(asked, plan, num_matched_tokens=0, now_s=now_s)


def test_log_keeps_the_newest_and_lists_them_first() -> None:
    log = RequestLog(3)
    for name in "abcde":
        logged(log, name)
    assert [request.request_id for request in log.newest(2, now_s=1)] == ["e", "d"]
    assert len(log) == 3
    assert log.newest(-1, now_s=1) == []
    assert len(log.newest((1 << 64) - 1, now_s=1)) == len(log)
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


def test_request_that_its_client_left_is_cancelled_and_has_not_failed() -> None:
    log = RequestLog(3)
    for name, ok in (("a", True), ("b", False)):
        logged(log, name)
        done = RequestDone(request_id=RequestId(name), node=NodeId("d"), ok=ok, is_cancelled=True)
        log.finish(done)
    listed = log.newest(10, now_s=4)
    assert [(each.outcome, each.state) for each in listed] == [("cancelled", "done")] * 2


def refused(name: str, why: str = "no") -> Refused:
    asked = Schedule(
        request_id=RequestId(name), model="m", num_prompt_tokens=10, max_tokens=5, hashes=[]
    )
    return Refused(asked, why=why, policy="time", predicted_ttft_s=9.0)


def test_rejections_are_listed_with_their_reason_and_push_no_plan_out() -> None:
    log = RequestLog(3)
    logged(log, "a", now_s=1)
    for number in range(8):
        log.reject(refused(f"r{number}", "the queue is full"), now_s=2 + number)
    logged(log, "b", now_s=20)
    listed = log.newest(10, now_s=20)
    assert [request.request_id for request in listed] == ["b", "r7", "r6", "r5", "a"]
    assert (listed[1].state, listed[1].why, listed[1].prefill) == (
        "rejected",
        "the queue is full",
        None,
    )
    assert listed[1].predicted_ttft_s == 9.0


def test_a_request_that_got_a_plan_is_that_plan() -> None:
    log = RequestLog(3)
    log.reject(refused("a"), now_s=1)
    logged(log, "a", now_s=2)
    log.reject(refused("a"), now_s=3)
    assert [request.state for request in log.newest(10, now_s=3)] == ["running"]


def test_time_between_tokens_is_kept_beside_its_prediction() -> None:
    log = RequestLog(3)
    logged(log, "a")
    log.finish(RequestDone(request_id=RequestId("a"), node=NodeId("d"), ok=True), tbt_s=0.02)
    (request,) = log.newest(1, now_s=4)
    assert (request.predicted_tbt_s, request.actual_tbt_s) == (0.03, 0.02)


def test_steps_and_drafts_of_decode_are_kept() -> None:
    log = RequestLog(3)
    logged(log, "a")
    timing = Timing(first_token_s=0.5, decode_steps=40, drafted_tokens=12, accepted_tokens=9)
    log.finish(RequestDone(request_id=RequestId("a"), node=NodeId("d"), ok=True, timing=timing))
    (request,) = log.newest(1, now_s=4)
    counts = request.num_decode_steps, request.num_drafted_tokens, request.num_accepted_tokens
    assert (request.actual_ttft_s, counts) == (0.5, (40, 12, 9))
