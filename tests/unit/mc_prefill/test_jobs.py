"""Every prompt ends in one reply and gives its slot back, whoever lets go last. No model, no sockets."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from kit.prefill_jobs import Bench

from daemons.core.errors import Exhausted, Unavailable
from daemons.core.ids import RequestId
from daemons.protocol.request import PrefillReply, PrefillStarted


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.arena.check_invariants()
    made.loader.close()
    made.loop.close()


def test_a_slot_is_held_until_the_decode_node_has_pulled(bench: Bench) -> None:
    call = bench.admit()
    job = bench.finish()
    assert [type(said) for said in call.said] == [PrefillStarted, PrefillReply]
    assert (bench.arena.num_live, bench.jobs.num_live) == (1, 1)
    bench.jobs.pulled(job.request.request_id)
    assert (bench.arena.num_live, bench.jobs.num_live) == (0, 0)
    assert bench.advanced == [0]


def test_kv_that_nobody_pulls_is_given_up_in_time(bench: Bench) -> None:
    bench.admit()
    bench.finish()
    bench.advance(6)
    assert bench.arena.num_live == 0
    assert bench.advanced


def test_a_put_in_flight_holds_the_slot(bench: Bench) -> None:
    call = bench.admit(put_target=SimpleNamespace(node="n", control="c"))
    job = bench.computing[0]
    bench.jobs.chunk_done(job, 0, 256)
    bench.finish()
    assert call.said[-1].num_published_blocks == 4
    bench.jobs.pulled(job.request.request_id)
    assert bench.arena.num_live == 1
    [(blocks, on_done)] = bench.publisher.offers
    assert len(blocks) == 4
    on_done(4)
    assert bench.arena.num_live == 0


def test_slot_of_a_put_that_hangs_goes_to_those_that_wait_and_not_before(bench: Bench) -> None:
    bench.admit(put_target=SimpleNamespace(node="n", control="c"))
    job = bench.computing[0]
    bench.jobs.chunk_done(job, 0, 256)
    bench.finish()
    bench.jobs.pulled(job.request.request_id)
    bench.advance(10)
    assert bench.arena.num_live == 1, "nobody needs it"
    bench.admit()
    assert [job.request.request_id for job in bench.computing] == ["r2"]
    assert bench.advanced == [0], "a late reader sees that it was reused"
    [(_, on_done)] = bench.publisher.offers
    on_done(0)
    assert (bench.arena.num_live, bench.jobs.num_live) == (1, 1)


def test_a_prompt_whose_prefix_is_being_computed_waits_for_it_and_looks_again(bench: Bench) -> None:
    target = SimpleNamespace(node="n", control="c")
    bench.admit(num_tokens=200, put_target=target)
    bench.admit(num_tokens=210, put_target=target)
    assert [job.request.request_id for job in bench.computing] == ["r1"]
    bench.finish()
    assert not bench.looked_up, "its last blocks are still on their way"
    bench.advance(0.05)
    assert bench.looked_up == [3]
    assert [job.request.request_id for job in bench.computing] == ["r2"]


def test_a_prompt_whose_sibling_ends_early_starts_too(bench: Bench) -> None:
    target = SimpleNamespace(node="n", control="c")
    bench.admit(num_tokens=200, put_target=target)
    bench.admit(num_tokens=210, put_target=target)
    bench.jobs.cancel(RequestId("r1"))
    bench.finish()
    bench.advance(0.05)
    assert [job.request.request_id for job in bench.computing] == ["r2"]


def test_put_has_its_time_although_others_wait(bench: Bench) -> None:
    bench.admit(put_target=SimpleNamespace(node="n", control="c"))
    job = bench.computing[0]
    bench.jobs.chunk_done(job, 0, 256)
    bench.admit()
    bench.finish()
    bench.jobs.pulled(job.request.request_id)
    bench.advance(0.9)
    assert not bench.computing
    bench.advance(0.2)
    assert [job.request.request_id for job in bench.computing] == ["r2"]
    assert bench.jobs.metrics.puts_given_up._value.get() == 1


def test_cancelled_while_it_waits_for_room_while_it_waits_for_the_model_and_while_it_is_computed(
    bench: Bench,
) -> None:
    running, queued = bench.admit(250), bench.admit(250)
    waiting = bench.admit(250)
    for name in ("r3", "r2"):
        bench.jobs.cancel(RequestId(name))
    assert isinstance(waiting.error, Unavailable)
    assert isinstance(queued.error, Unavailable)
    assert (bench.arena.num_live, bench.jobs.num_live) == (1, 1)
    bench.jobs.cancel(RequestId("r1"))
    assert isinstance(running.error, Unavailable)
    assert bench.arena.num_live == 1, "the model still writes there"
    bench.finish()
    assert (bench.arena.num_live, bench.jobs.num_live) == (0, 0)


def test_time_that_ends_before_the_answer_ends_the_prompt_wherever_it_is(bench: Bench) -> None:
    running = bench.admit(250, timeout_s=9)
    queued, waiting = bench.admit(250, timeout_s=7), bench.admit(250, timeout_s=5)
    bench.advance(5.1)
    assert isinstance(waiting.error, Unavailable)
    assert "after 5.1 s here, waiting for KV room with 2 others" in waiting.error.message
    bench.advance(2)
    assert isinstance(queued.error, Unavailable)
    assert (bench.arena.num_live, bench.jobs.num_live) == (1, 1)
    bench.advance(2)
    assert isinstance(running.error, Unavailable)
    assert bench.computing[0].cancelled.is_set()
    assert bench.arena.num_live == 1, "the model still writes there"
    bench.finish()
    assert (bench.arena.num_live, bench.jobs.num_live) == (0, 0)


def test_answered_in_time_is_held_for_its_own_time(bench: Bench) -> None:
    call = bench.admit(timeout_s=3)
    bench.finish()
    bench.advance(3.1)
    assert call.error is None
    assert bench.arena.num_live == 1
    bench.advance(2)
    assert bench.arena.num_live == 0


def test_those_that_wait_for_a_peer_that_is_gone_all_end(bench: Bench) -> None:
    """More of them than Python nests calls: each that fails at once makes room for the next."""
    first = bench.admit()
    calls = [bench.admit() for _ in range(500)]
    for call in (first, *calls):
        call.is_peer_gone = True
    bench.finish()
    assert (bench.arena.num_live, bench.jobs.num_live) == (0, 0)
    assert all(call.is_done for call in calls)


def test_a_full_queue_and_a_draining_node_refuse(bench: Bench) -> None:
    for _ in range(601):
        bench.admit()
    with pytest.raises(Exhausted):
        bench.admit()
    bench.jobs.is_draining = True
    with pytest.raises(Unavailable, match="draining"):
        bench.admit()
