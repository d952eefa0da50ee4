"""Every request of a decode node ends in one reply and gives its slot back, whoever lets go last."""

from collections.abc import Iterator
from random import Random

import pytest
from kit.decode_bench import EOS, Answer, Bench

from daemons.core.errors import Exhausted, McError, Rejected, Unavailable
from daemons.mc_decode.request import Stepped
from daemons.protocol.request import Cancel, SamplingParams

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def is_free(bench: Bench) -> bool:
    return bench.requests.num_live == 0 and bench.instance.arena.num_live == 0


def test_request_goes_from_prefill_to_its_last_token(bench: Bench) -> None:
    answer = bench.ask(num_tokens=100, max_tokens=3)
    request = bench.fill(answer, token=7)
    assert bench.has_same_kv(request)
    bench.step(request, 8)
    bench.step(request, 9, "length")
    bench.until(lambda: answer.end)
    assert answer.tokens == [7, 8, 9]
    assert answer.reply.finish_reason == "length"
    assert answer.reply.num_generated_tokens == 3
    assert answer.reply.timing.pulled_bytes == 100 * 64
    assert bench.done(answer).ok
    assert bench.prefill.pulled == [answer.request_id]
    assert bench.instance.arena.num_live == 1, "a step may still work on it"
    bench.let_go()
    assert is_free(bench)


def test_end_token_is_no_part_of_the_answer(bench: Bench) -> None:
    first, later = bench.ask(), bench.ask()
    bench.at_prefill(first)
    bench.prefill.serve(first.request_id, EOS)
    bench.until(lambda: first.end)
    assert (first.tokens, first.reply.finish_reason) == ([], "stop")
    request = bench.fill(later)
    bench.step(request, EOS, "stop")
    bench.until(lambda: later.end)
    assert (later.tokens, later.reply.finish_reason) == ([7], "stop")
    bench.let_go()
    bench.until(lambda: is_free(bench))
    assert sorted(bench.prefill.pulled) == ["r1", "r2"]


def test_ignored_end_token_goes_on(bench: Bench) -> None:
    answer = bench.ask(sampling=SamplingParams(max_tokens=2, ignore_eos=True))
    request = bench.fill(answer, token=EOS)
    bench.step(request, EOS, "length")
    bench.until(lambda: answer.end)
    assert answer.tokens == [EOS, EOS]
    bench.let_go()
    assert is_free(bench)


def test_answer_of_one_token_gives_both_slots_back(bench: Bench) -> None:
    answer = bench.ask(max_tokens=1)
    bench.at_prefill(answer)
    bench.prefill.serve(answer.request_id)
    bench.until(lambda: answer.end and bench.prefill.pulled and is_free(bench))
    assert (answer.tokens, answer.reply.finish_reason) == ([7], "length")
    assert not bench.joined


def test_those_without_room_wait_in_order(bench: Bench) -> None:
    answers = [bench.ask(num_tokens=500, max_tokens=4) for _ in range(4)]
    bench.at_prefill(answers[0])
    bench.settle()
    load = bench.requests.load_view()
    assert list(bench.prefill.prompts) == ["r1"]
    assert (load.num_queued, load.num_running, load.queued_tokens) == (3, 1, 1500)
    for answer in answers:
        request = bench.fill(answer)
        bench.step(request, 1, "stop")
        bench.let_go()
    bench.until(lambda: is_free(bench))
    assert list(bench.prefill.prompts) == ["r1", "r2", "r3", "r4"]


def test_long_one_at_the_head_is_not_overtaken(bench: Bench) -> None:
    first, long, short = bench.ask(300), bench.ask(500, 12), bench.ask(20)
    bench.at_prefill(first)
    bench.settle()
    assert list(bench.prefill.prompts) == ["r1"]
    bench.client.post(Cancel(request_id=long.request_id))
    bench.at_prefill(short)
    assert isinstance(long.error, Unavailable)


# -- deadlines ---------------------------------------------------------------------------------------------------


def test_time_that_ends_in_the_queue_ends_the_request_and_makes_place(bench: Bench) -> None:
    first, late, next_one = bench.ask(500), bench.ask(500, timeout_s=5.0), bench.ask(500)
    bench.at_prefill(first)  # or the clock jumps while its connection is made, and that has failed
    bench.until(lambda: bench.requests.num_live == 3)
    bench.advance(5.01)
    bench.until(lambda: late.end)
    why = bench.done(late).why
    assert not bench.done(late).ok
    assert "waited for KV room behind 0 others" in why
    assert "5.0 s" in why
    assert bench.requests.num_live == 2
    bench.step(bench.fill(first), 1, "stop")
    bench.let_go()
    bench.step(bench.fill(next_one), 1, "stop")
    bench.let_go()
    assert is_free(bench)
    assert late.request_id not in bench.prefill.prompts


def test_time_that_ends_while_prefill_computes_frees_both_sides(bench: Bench) -> None:
    answer = bench.ask(timeout_s=5.0)
    bench.at_prefill(answer)
    prompt = bench.prefill.start(answer.request_id)
    assert prompt.call.deadline_s <= bench.clock.now_s + 5.0
    bench.settle()
    bench.advance(5.01)
    bench.until(lambda: is_free(bench) and bench.prefill.cancelled)
    assert bench.prefill.cancelled == [answer.request_id]
    assert not bench.done(answer).ok


def test_time_that_ends_among_the_tokens_ends_the_stream(bench: Bench) -> None:
    answer = bench.ask(max_tokens=50, timeout_s=5.0)
    request = bench.fill(answer)
    bench.step(request, 8)
    bench.advance(5.01)
    assert "was at token 2" in bench.done(answer).why
    assert bench.leaving == [request]
    bench.step(request, 9)
    assert request.tokens == [7, 8], "what a step still made is dropped"
    bench.let_go()
    assert is_free(bench)


def test_request_that_ended_in_time_does_not_end_twice(bench: Bench) -> None:
    answer = bench.ask(max_tokens=2, timeout_s=5.0)
    bench.step(bench.fill(answer), 8, "length")
    bench.let_go()
    bench.until(lambda: answer.end)
    bench.advance(6.0)
    assert bench.done(answer).ok


# -- ends of other kinds -----------------------------------------------------------------------------------------


def test_cancelled_while_it_waits_while_it_fills_and_while_it_decodes(bench: Bench) -> None:
    decoding, filling, waiting = bench.ask(200), bench.ask(200), bench.ask(500)
    request = bench.fill(decoding)
    bench.at_prefill(filling)
    bench.until(lambda: bench.requests.num_live == 3)
    for answer in (waiting, filling, decoding):
        bench.client.post(Cancel(request_id=answer.request_id, why="its client left"))
    bench.until(lambda: all(answer.end for answer in (waiting, filling, decoding)))
    assert isinstance(waiting.error, Unavailable)
    assert isinstance(filling.error, Unavailable)
    assert decoding.reply.finish_reason == "cancelled", "its tokens were delivered and count"
    assert bench.leaving == [request]
    bench.let_go()
    bench.until(lambda: is_free(bench) and bench.prefill.cancelled)
    assert bench.prefill.cancelled == [filling.request_id]
    assert not bench.puts, "a cancelled answer is not published"
    said = [bench.done(answer) for answer in (waiting, filling, decoding)]
    assert [(each.is_cancelled, each.why) for each in said] == [(True, "its client left")] * 3


def test_answer_that_met_its_stop_string_was_not_cancelled(bench: Bench) -> None:
    answer = bench.ask()
    bench.fill(answer)
    bench.client.post(Cancel(request_id=answer.request_id, is_complete=True))
    bench.until(lambda: answer.end)
    bench.let_go()
    done = bench.done(answer)
    assert (done.ok, done.is_cancelled, done.why) == (True, False, "")


def test_cancelled_twice_or_after_its_end_is_fine(bench: Bench) -> None:
    answer = bench.ask(max_tokens=2)
    bench.step(bench.fill(answer), 8, "length")
    for _ in range(2):
        bench.client.post(Cancel(request_id=answer.request_id))
    bench.client.post(Cancel(request_id="nobody"))  # type: ignore[arg-type]
    bench.settle()
    bench.let_go()
    assert answer.reply.finish_reason == "length"
    assert is_free(bench)


def test_client_that_left_is_noticed_at_the_next_token(bench: Bench) -> None:
    answer = bench.ask(max_tokens=500 - 100)
    request = bench.fill(answer)
    bench.client.close()
    bench.settle()
    bench.step(request, 8)
    assert bench.leaving == [request]
    bench.let_go()
    assert is_free(bench)


def test_failed_prefill_is_named(bench: Bench) -> None:
    answer = bench.ask()
    bench.at_prefill(answer)
    bench.prefill.prompts[answer.request_id].call.fail(Exhausted("no room", retry_after_ms=70))
    bench.until(lambda: answer.end)
    assert isinstance(answer.error, Exhausted)
    assert answer.error.message == "prefill node p-1: no room"
    assert answer.error.retry_after_ms == 70
    assert is_free(bench)


def test_broken_step_fails_its_requests(bench: Bench) -> None:
    answer = bench.ask()
    request = bench.fill(answer)
    bench.requests.failed(request, McError("internal error"))
    bench.until(lambda: answer.end)
    assert "internal error" in answer.error.message
    bench.let_go()
    assert is_free(bench)


def test_answer_that_is_being_put_holds_its_slot(bench: Bench) -> None:
    answer = bench.ask(num_tokens=100, max_tokens=40)
    request = bench.fill(answer, num_published=6)
    for token in range(30):
        bench.step(request, token)
    bench.step(request, EOS, "stop")
    bench.let_go()
    bench.until(lambda: bench.puts and answer.end)
    # 100 prompt tokens and 31 of the answer that have KV: blocks 6 and 7 end in the answer.
    assert answer.reply.num_published_blocks == 6 + 2
    assert bench.instance.arena.num_live == 1
    bench.answer_puts()
    bench.until(lambda: is_free(bench))


def test_answer_whose_put_hangs_gives_its_slot_to_one_that_waits(bench: Bench) -> None:
    """Its generation is raised first, so that the cache node trusts nothing that it reads later."""
    hung = bench.ask(num_tokens=480, max_tokens=32)
    request = bench.fill(hung)
    for token in range(30):
        bench.step(request, token)
    source_word = bench.instance.generations
    bench.step(request, EOS, "stop")
    bench.let_go()
    bench.until(lambda: bench.puts and hung.end)
    guard = bench.puts[0].message.blocks[0].source.generation
    assert source_word.guard(guard.index).value == guard.value
    next_one = bench.ask(500)
    bench.until(lambda: bench.requests.load_view().num_queued == 1)
    bench.advance(0.9)
    assert bench.requests.load_view().num_queued == 1
    bench.advance(0.2)
    bench.at_prefill(next_one)
    assert source_word.guard(guard.index).value != guard.value
    again = bench.ask(request_id=hung.request_id, num_tokens=500)
    bench.until(lambda: bench.requests.load_view().num_queued == 1)
    bench.answer_puts()
    bench.settle()
    assert bench.requests.load_view().num_queued == 1, "the late answer is not for this one"
    bench.step(bench.fill(next_one), 1, "stop")
    bench.let_go()
    bench.until(lambda: not bench.prefill.prompts[again.request_id].call.is_done)
    bench.step(bench.fill(again), 1, "stop")
    bench.let_go()
    bench.until(lambda: is_free(bench))


@pytest.mark.parametrize("changes", [{"cache": "bypass"}, {"hashes": []}])
def test_bypassing_answer_is_not_published(bench: Bench, changes: dict[str, object]) -> None:
    answer = bench.ask(num_tokens=100, max_tokens=40, **({"cache": "bypass"} | changes))
    request = bench.fill(answer)
    for token in range(30):
        bench.step(request, token)
    bench.step(request, EOS, "stop")
    bench.until(lambda: answer.end)
    bench.let_go()
    assert answer.reply.num_published_blocks == 0
    assert is_free(bench)


def test_same_request_twice_is_refused_once(bench: Bench) -> None:
    answer = bench.ask()
    bench.at_prefill(answer)
    again = bench.ask(request_id=answer.request_id)
    bench.until(lambda: again.end)
    assert isinstance(again.error, Rejected)
    assert answer.end is None


def test_request_for_a_draining_node_goes_elsewhere(bench: Bench) -> None:
    bench.requests.is_draining = True
    late = bench.ask()
    bench.until(lambda: late.end)
    assert isinstance(late.error, Unavailable)
    assert "draining; use another one" in late.error.message
    assert is_free(bench)


def test_full_queue_says_when_to_come_back() -> None:
    bench = Bench(max_queued=2)
    try:
        answers = [bench.ask(500) for _ in range(4)]
        bench.until(lambda: answers[-1].end)
        assert isinstance(answers[-1].error, Exhausted)
        assert answers[-1].error.retry_after_ms == 1000
        assert bench.requests.num_live == 3
    finally:
        bench.close()


class Chaos:
    """Prompts, tokens, cancels, deadlines, failures and broken hand-overs, as a seed has them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bench = Bench()
        self.answers: list[Answer] = []

    def run(self, num_events: int) -> None:
        events = [self.ask, self.ask, self.serve, self.serve, self.step, self.cancel]
        events += [self.fail, self.void, self.finish, self.advance]
        for _ in range(num_events):
            self.random.choice(events)()
            self.bench.settle(0.002)

    def ask(self) -> None:
        size, max_tokens = self.random.randint(1, 400), self.random.randint(1, 20)
        timeout_s = self.random.choice([1.0, 30.0])
        self.answers.append(self.bench.ask(size, max_tokens, timeout_s=timeout_s))

    def serve(self) -> None:
        for request_id, prompt in list(self.bench.prefill.prompts.items())[-2:]:
            if not prompt.call.is_done:
                self.bench.prefill.serve(request_id, self.random.choice([5, EOS]))

    def step(self) -> None:
        for request in self.bench.joined:
            if request.state == "decoding":
                self.bench.step(request, 3, self.random.choice([None, "stop", "length"]))

    def cancel(self) -> None:
        if self.answers:
            request_id = self.random.choice(self.answers).request_id
            self.bench.client.post(Cancel(request_id=request_id))

    def fail(self) -> None:
        if self.bench.prefill.prompts:
            prompt = self.random.choice(list(self.bench.prefill.prompts.values()))
            prompt.call.fail(Unavailable("went away"))

    def void(self) -> None:
        if self.bench.prefill.prompts:
            self.bench.prefill.void(self.random.choice(list(self.bench.prefill.prompts)))

    def finish(self) -> None:
        self.bench.let_go()
        self.bench.answer_puts()

    def advance(self) -> None:
        self.bench.advance(0.6)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_events_frees_everything(seed: int) -> None:
    chaos = Chaos(seed)
    bench = chaos.bench
    try:
        chaos.run(150)
        bench.advance(700.0)
        for _ in range(5):
            bench.settle(0.02)
            chaos.finish()
        bench.until(lambda: is_free(bench))
        assert all(answer.end is not None for answer in chaos.answers)
    finally:
        bench.close()


def test_tokens_of_one_step_are_one_part_and_their_time_is_shared(bench: Bench) -> None:
    answer = bench.ask(max_tokens=40)
    request = bench.fill(answer)
    steps = [Stepped(request, [11, 12, 13, 14], None, num_drafts=7, num_right=3)]
    for _ in range(3):
        bench.requests.stepped(steps, 0.08)
    load = bench.requests.load_view()
    assert 0.02 < load.decode_step_s < 0.08
    assert bench.requests.metrics.draft_tokens.labels("proposed")._value.get() == 21
    assert bench.requests.metrics.draft_tokens.labels("accepted")._value.get() == 9
    bench.requests.stepped([Stepped(request, [15, 2], "stop", num_drafts=3, num_right=2)], 0.08)
    bench.until(lambda: answer.end)
    assert answer.tokens == [7, *[11, 12, 13, 14] * 3, 15]
    timing = answer.reply.timing
    assert (timing.decode_steps, timing.drafted_tokens, timing.accepted_tokens) == (4, 24, 11)
    assert request.tokens[-1] == 2, "an end token is known to it, as its KV may be"
