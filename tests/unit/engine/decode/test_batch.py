from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from daemons.engine.arena.kv_arena import KvArena
from daemons.engine.decode.batch import DecodeBatch
from daemons.engine.decode.sequence import Sequence
from daemons.engine.geometry import KvGeometry
from daemons.protocol.request import SamplingParams

ARENA = KvArena(KvGeometry(1, 1, 4, "float32"), 256)
SLOT = ARENA.allocate(256)
EOS = 9


def sequence(name: str, max_new: int = 5, num_prompt: int = 4) -> Sequence:
    made = Sequence(
        name,
        SLOT,
        list(range(num_prompt)),
        SamplingParams(max_tokens=max_new),
        max_length=num_prompt + max_new,
        stop_tokens=frozenset([EOS]),
    )
    made.append(1)  # the first token comes from prefill
    return made


def test_sequence_ends_at_stop_token_or_length() -> None:
    one = sequence("a", max_new=3)
    assert (one.tokens[-1], one.position, one.num_generated) == (1, 4, 1)
    one.append(2)
    assert one.finish is None
    one.append(3)
    assert one.finish == "length"
    other = sequence("b")
    other.append(EOS)
    assert (other.finish, other.tokens[-1]) == ("stop", EOS)


def test_sequence_never_outgrows_its_slot() -> None:
    assert sequence("a", max_new=10**6).max_length == SLOT.capacity_tokens


def test_later_sequences_wait_for_a_row() -> None:
    batch = DecodeBatch(max_batch=2)
    sequences = [sequence(name, max_new=3) for name in "abc"]
    for one in sequences:
        batch.join(one)
    assert batch.begin_step() == sequences[:2]
    assert batch.num_waiting == 1
    assert batch.end_step([[5], [EOS]]) == [sequences[1]]
    assert batch.begin_step() == [sequences[0], sequences[2]]
    assert batch.end_step([[5], [5]]) == [sequences[0]]


def test_cancelled_slot_comes_back_only_when_no_step_writes_it() -> None:
    batch = DecodeBatch(max_batch=1)
    running, waiting = sequence("a"), sequence("b")
    batch.join(running)
    batch.join(waiting)
    batch.begin_step()
    assert batch.cancel("a") is None
    assert batch.cancel("b") is waiting
    assert batch.cancel("c") is None
    assert batch.end_step([[5]]) == [running]
    assert (running.finish, running.num_generated) == ("cancelled", 1)
    assert batch.begin_step() == []


def test_tokens_behind_the_last_one_are_dropped() -> None:
    batch = DecodeBatch(max_batch=2)
    stops, fills = sequence("a"), sequence("b", max_new=3)
    batch.join(stops)
    batch.join(fills)
    batch.begin_step()
    assert batch.end_step([[5, EOS, 6], [5, 6, 7, 8]]) == [stops, fills]
    assert (stops.finish, stops.tokens[-2:]) == ("stop", [5, EOS])
    assert (fills.finish, fills.num_generated) == ("length", 3)


class BatchMachine(RuleBasedStateMachine):
    """Every sequence that joined comes out exactly once, finished."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = DecodeBatch(max_batch=3)
        self.inside: dict[str, Sequence] = {}
        self.joined = 0

    def out(self, left: list[Sequence]) -> None:
        for one in left:
            assert one.finish is not None
            assert self.inside.pop(one.request_id) is one

    @rule(max_new=st.integers(2, 6))
    def join(self, max_new: int) -> None:
        self.joined += 1
        one = sequence(str(self.joined), max_new)
        self.inside[one.request_id] = one
        self.batch.join(one)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        rows = self.batch.begin_step()
        assert len(rows) == min(3, len(self.inside))
        if rows and data.draw(st.booleans()):
            assert self.batch.cancel(rows[0].request_id) is None
        made = st.lists(st.integers(3, 9), min_size=1, max_size=3)
        tokens = data.draw(st.lists(made, min_size=len(rows), max_size=len(rows)))
        self.out(self.batch.end_step(tokens))

    @rule(number=st.integers(1, 20))
    def cancel(self, number: int) -> None:
        one = self.batch.cancel(str(number))
        self.out([] if one is None else [one])

    @invariant()
    def sound(self) -> None:
        self.batch.check_invariants()
        assert self.batch.num_running + self.batch.num_waiting == len(self.inside)


BatchMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestBatchMachine = BatchMachine.TestCase
