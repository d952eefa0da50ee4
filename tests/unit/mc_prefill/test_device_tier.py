"""What stays in the arena after its prompt: who starts from it, and who it gives way to. No model, no sockets."""

from collections.abc import Iterator

import pytest
from kit.prefill_jobs import NAMESPACE, Bench

from daemons.core.ids import BlockHash, NodeId, RequestId
from daemons.mc_prefill.job import Job
from daemons.protocol.block import BlockFilter
from daemons.protocol.prefix_hash import block_hashes
from daemons.protocol.request import PrefillStarted, PutTarget

HASHES = block_hashes(NAMESPACE, [1] * 200, 64)


@pytest.fixture
def keeping() -> Iterator[Bench]:
    """Four chunks, of which all may stay."""
    made = Bench(1.0, num_tokens=1024)
    yield made
    made.arena.check_invariants()
    made.tier.slots.check_invariants()
    assert made.told.held == set(made.tier.slots.hashes())
    made.loader.close()
    made.loop.close()


def serve(bench: Bench, num_tokens: int, **more: object) -> Job:
    bench.admit(num_tokens, **more)
    job = bench.finish()
    while bench.copier.started:
        bench.copier.started.pop()[1]()
    bench.jobs.pulled(job.request.request_id)
    return job


def test_a_prompt_goes_on_in_the_slot_that_has_its_beginning_and_nothing_else(
    keeping: Bench,
) -> None:
    first = serve(keeping, 200)
    assert (keeping.arena.num_live, keeping.tier.slots.num_idle) == (1, 1)
    assert keeping.advanced == [0]
    assert len(keeping.told.held) == 3
    again = serve(keeping, 250)
    assert first.reused is not None
    assert again.reused is not None
    assert (first.reused.num_held, again.reused.num_held) == (0, 3)
    assert keeping.advanced == [0, 0]
    assert (keeping.arena.num_live, len(keeping.told.held)) == (1, 3)


def test_a_longer_prompt_copies_its_beginning_and_the_shorter_slot_then_goes(
    keeping: Bench,
) -> None:
    serve(keeping, 200)
    call = keeping.admit(300)
    started = call.said[0]
    assert isinstance(started, PrefillStarted)
    assert started.num_reused_tokens == 192
    ((_, on_end),) = keeping.copier.started
    job = keeping.finish()
    keeping.jobs.pulled(job.request.request_id)
    assert keeping.arena.num_live == 2  # the copy still reads the one and writes the other
    on_end()
    assert (keeping.arena.num_live, keeping.tier.slots.num_idle) == (1, 1)
    assert len(keeping.told.held) == 4


def branching(bench: Bench, num_shared: int, num_own: int = 60) -> Job:
    """A prompt that begins like all others here, and then goes its own way."""
    tokens = [1] * num_shared + [2] * num_own
    return serve(bench, 0, tokens=tokens, hashes=block_hashes(NAMESPACE, tokens, 64))


def test_a_prompt_goes_on_in_a_slot_that_has_little_else(keeping: Bench) -> None:
    serve(keeping, 600)
    again = branching(keeping, 512)
    assert again.reused is not None
    assert (again.reused.num_held, again.reused.copy) == (8, None)
    assert (keeping.arena.num_live, len(keeping.told.held)) == (1, 8), "its ninth block is gone"


def test_two_conversations_that_begin_alike_take_the_slot_from_each_other_once() -> None:
    bench = Bench(1.0, num_tokens=2048)
    served = [serve(bench, 600), branching(bench, 512, 70)]
    served += [serve(bench, 620), branching(bench, 512, 80), serve(bench, 630)]
    assert [job.reused.num_held for job in served if job.reused] == [0, 8, 8, 9, 9]
    assert [job.reused.copy is not None for job in served if job.reused] == [
        False, False, True, False, False,
    ]  # fmt: skip
    bench.tier.slots.check_invariants()
    bench.loader.close()
    bench.loop.close()


def test_a_prompt_leaves_a_slot_alone_that_has_more(keeping: Bench) -> None:
    serve(keeping, 300)
    again = branching(keeping, 192)
    assert again.reused is not None
    assert again.reused.num_held == 3
    assert again.reused.copy is not None
    assert len(keeping.told.held) == 4


def test_a_whole_prompt_again_leaves_its_last_token_to_the_model(keeping: Bench) -> None:
    serve(keeping, 192)
    again = serve(keeping, 192)
    assert again.reused is not None
    assert again.reused.num_held == 2
    assert len(keeping.told.held) == 3


def test_what_is_kept_gives_way_at_once_to_a_prompt_that_needs_the_room(keeping: Bench) -> None:
    serve(keeping, 200)
    other = [2] * 1000
    call = keeping.admit(tokens=other, hashes=block_hashes(NAMESPACE, other, 64))
    assert isinstance(call.said[0], PrefillStarted)
    assert keeping.told.held == set()
    assert keeping.finish().num_reused_tokens == 0


def test_without_room_for_a_copy_the_prompt_takes_the_slot_itself(keeping: Bench) -> None:
    serve(keeping, 900)
    again = serve(keeping, 700)
    assert again.reused is not None
    assert again.reused.num_held == 10
    assert not keeping.copier.started
    assert len(keeping.told.held) == 10


def test_nothing_stays_of_a_prompt_that_bypasses_was_cancelled_or_cleared(keeping: Bench) -> None:
    serve(keeping, 200, cache="bypass")
    keeping.admit(200)
    keeping.jobs.cancel(RequestId("r2"))
    keeping.finish()
    keeping.admit(200)
    keeping.tier.forget_ahead(BlockFilter(tenant="other"))
    keeping.tier.forget_ahead(BlockFilter(model="m"))
    keeping.jobs.pulled(keeping.finish().request.request_id)
    assert (keeping.arena.num_live, keeping.told.held) == (0, set())
    keeping.advance(1.0)
    serve(keeping, 200)
    keeping.tier.forget_ahead(BlockFilter(tenant="other"))
    assert len(keeping.told.held) == 3
    assert keeping.admit(200, cache="bypass").said[0].num_reused_tokens == 0  # type: ignore[attr-defined]
    keeping.finish()
    keeping.jobs.pulled(RequestId("r5"))


@pytest.mark.parametrize(
    ("tenant", "ages_s", "num_kept"),
    [
        ("", [4.0], 0),
        ("", [6.0], 3),
        ("other", [4.0], 3),
        ("other", [4.0] * 65, 0),  # more than are remembered: it may have been any
        ("other", [6.0] * 65, 3),
    ],
)
def test_a_clear_that_is_heard_of_late_is_for_what_was_being_computed_then(
    keeping: Bench, tenant: str, ages_s: list[float], num_kept: int
) -> None:
    keeping.advance(1.0)
    keeping.admit(200)
    keeping.advance(5.0)
    for age_s in ages_s:
        keeping.tier.forget_ahead(BlockFilter(tenant=tenant), age_s)
    keeping.jobs.pulled(keeping.finish().request.request_id)
    assert len(keeping.told.held) == num_kept


@pytest.mark.parametrize(
    ("wanted", "num_reused_tokens", "num_kept"),
    [
        (BlockFilter(older_than_s=3600.0), 0, 3),
        (BlockFilter(older_than_s=3600.0), 64, 0),  # what it found may be older
        (BlockFilter(older_than_s=2.0), 0, 0),
        (BlockFilter(hashes=(BlockHash(b"another"),)), 0, 3),
        (BlockFilter(hashes=(BlockHash(b"another"), HASHES[1])), 0, 0),
        (BlockFilter(hash_prefix=HASHES[1].hex()[:9].upper()), 0, 0),
        (BlockFilter(hash_prefix=HASHES[1][::-1].hex()), 0, 3),
    ],
)
def test_a_clear_of_other_blocks_drops_nothing_of_a_prompt_that_is_being_computed(
    keeping: Bench, wanted: BlockFilter, num_reused_tokens: int, num_kept: int
) -> None:
    keeping.admit(200)
    keeping.advance(5.0)
    keeping.tier.forget_ahead(wanted)
    keeping.computing[0].num_reused_tokens = num_reused_tokens
    keeping.jobs.pulled(keeping.finish().request.request_id)
    assert len(keeping.told.held) == num_kept


def test_a_prompt_that_waits_for_room_is_not_held_up_by_what_is_kept(keeping: Bench) -> None:
    """The one slot is pulled from; what stays when it is done is in nobody's way."""
    keeping.admit(1000)
    other = [2] * 1000
    call = keeping.admit(tokens=other, hashes=block_hashes(NAMESPACE, other, 64))
    assert not call.said
    keeping.jobs.pulled(keeping.finish().request.request_id)
    assert isinstance(call.said[0], PrefillStarted)
    keeping.jobs.pulled(keeping.finish().request.request_id)
    assert len(keeping.told.held) == 15


def test_a_prompt_starts_from_what_another_has_just_made_without_asking_the_pool(
    keeping: Bench,
) -> None:
    target = PutTarget(node=NodeId("c"), control="tcp://127.0.0.1:1")
    keeping.admit(500, put_target=target)
    call = keeping.admit(510, put_target=target)
    assert not call.said  # the first one makes what it begins with
    first = keeping.finish()
    assert isinstance(call.said[0], PrefillStarted)
    assert call.said[0].num_reused_tokens == 448
    assert keeping.looked_up == []
    ((_, on_end),) = keeping.copier.started
    keeping.jobs.pulled(first.request.request_id)
    on_end()
    keeping.jobs.pulled(keeping.finish().request.request_id)


def test_who_waits_for_a_prompt_that_is_given_up_does_not_wait_for_its_copy_as_well() -> None:
    bench = Bench(1.0, num_tokens=2048)
    target = PutTarget(node=NodeId("c"), control="tcp://127.0.0.1:1")
    serve(bench, 200)
    other = [2] * 100
    bench.admit(tokens=other, hashes=block_hashes(NAMESPACE, other, 64))
    bench.admit(500, put_target=target)
    waiting = bench.admit(510, put_target=target)
    assert len(bench.copier.started) == 1
    assert not waiting.said
    bench.jobs.cancel(RequestId("r3"))
    assert isinstance(waiting.said[0], PrefillStarted)
    bench.loader.close()
    bench.loop.close()


@pytest.mark.parametrize(("num_in_pool", "offered"), [(0, [0, 1]), (1, [1]), (3, []), (None, [])])
def test_what_is_in_the_arena_and_not_in_the_pool_is_put_there_again(
    keeping: Bench, num_in_pool: int | None, offered: list[int]
) -> None:
    """Its cache node is gone; whatever follows a prefix is found behind it alone. With None the master is away."""
    serve(keeping, 190)
    target = PutTarget(node=NodeId("c"), control="tcp://127.0.0.1:1")
    keeping.in_pool = None if num_in_pool is None else [object()] * num_in_pool
    call = keeping.admit(250, put_target=target)
    assert isinstance(call.said[0], PrefillStarted)
    job = keeping.computing[0]
    job.num_reused_tokens = 128
    keeping.jobs.chunk_done(job, 128, 250)
    keeping.finish()
    assert keeping.looked_up == [2]
    puts = [[block.meta.depth for block in blocks] for blocks, _ in keeping.publisher.offers]  # type: ignore[attr-defined]
    assert puts == [[2], offered] if offered else [[2]]
    keeping.jobs.pulled(job.request.request_id)
    assert keeping.tier.slots.num_idle == 0, "they are read from its slot"
    for _, on_done in keeping.publisher.offers:
        on_done(1)  # type: ignore[operator]
    assert keeping.tier.slots.num_idle == 1
    serve(keeping, 250)
    assert keeping.looked_up == [2], "without a pool nothing is looked up"


def test_what_is_cleared_while_it_is_put_there_again_is_not_wanted_any_more(keeping: Bench) -> None:
    """Of many groups some are still to come."""
    serve(keeping, 190)
    keeping.in_pool = []
    keeping.admit(250, put_target=PutTarget(node=NodeId("c"), control="tcp://127.0.0.1:1"))
    keeping.computing[0].num_reused_tokens = 128
    keeping.finish()
    [is_wanted] = keeping.publisher.wanted
    assert is_wanted()
    keeping.tier.forget_ahead(BlockFilter(model="other"))
    assert is_wanted()
    keeping.tier.forget_ahead(BlockFilter(model="m"))
    assert not is_wanted()


def test_what_was_cleared_while_a_prompt_went_on_with_it_is_not_put_there_again(
    keeping: Bench,
) -> None:
    serve(keeping, 190)
    keeping.admit(190, put_target=PutTarget(node=NodeId("c"), control="tcp://127.0.0.1:1"))
    job = keeping.computing[0]
    job.num_reused_tokens = 128
    keeping.tier.forget_ahead(BlockFilter(model="m"))
    keeping.tier.forget(keeping.tier.hashes())
    keeping.finish()
    assert (keeping.looked_up, keeping.publisher.offers) == ([], [])
    keeping.jobs.pulled(job.request.request_id)
    assert keeping.told.held == set()
