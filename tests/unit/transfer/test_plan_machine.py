"""Any order of sends, completions, failures and waits: no slice is lost, doubled, or sent where it should not be."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from daemons.core.units import KIB
from daemons.transfer.path_record import Path, PathPolicy
from daemons.transfer.plan import BatchEnd, BatchId, PathBook, Send
from daemons.transfer.slices import Slice, Span, cut

POLICY = PathPolicy(pause_s=1.0, max_pause_s=8.0, max_attempts=3, sample_bytes=8 * KIB)


class PathBookMachine(RuleBasedStateMachine):
    """The model knows what was submitted, is in flight, and has arrived; it never looks inside the book."""

    @initialize(num_paths=st.integers(1, 4), max_in_flight=st.integers(1, 4))
    def start(self, num_paths: int, max_in_flight: int) -> None:
        names = [f"nic{i}" for i in range(num_paths)]
        self.names = names
        self.max_in_flight = max_in_flight
        self.book = PathBook([Path(n, 1e6, max_in_flight) for n in names], POLICY)
        self.now = 0.0
        self.expected: dict[BatchId, list[Slice]] = {}
        self.arrived: dict[BatchId, list[Slice]] = {}
        self.ends: dict[BatchId, BatchEnd] = {}
        self.broken: set[BatchId] = set()
        """May end with an error."""
        self.flying: list[Send] = []

    @rule(
        lengths=st.lists(st.integers(1, 40 * KIB), min_size=1, max_size=6),
        near=st.sets(st.integers(0, 3)),
    )
    def submit(self, lengths: list[int], near: set[int]) -> None:
        spans, offset = [], 0
        for length in lengths:
            spans.append(Span(offset, offset, length))
            offset += length + 1
        slices = cut(spans, 4 * KIB, max_spans=2)
        batch = self.book.submit(slices, {f"nic{i}" for i in near if i < len(self.names)})
        self.expected[batch] = slices
        self.arrived[batch] = []

    @rule(limit=st.integers(1, 8))
    def send(self, limit: int) -> None:
        for _ in range(limit):
            views = {view.name: view for view in self.book.views(self.now)}
            send = self.book.next(self.now)
            if send is None:
                return
            view = views[send.path]
            if any(other.state == "up" for other in views.values()):
                assert view.state != "paused", "a healthy path exists"
            if view.state != "up":
                assert send.is_trial
                assert not any(f.is_trial and f.path == send.path for f in self.flying)
            assert sum(f.path == send.path for f in self.flying) < self.max_in_flight
            assert send.batch not in self.ends
            same = [f for f in self.flying if f.batch == send.batch and f.slice == send.slice]
            assert not same, "the slice is in flight already"
            assert send.slice not in self.arrived[send.batch], "the slice has arrived already"
            self.flying.append(send)

    def take(self, data: st.DataObject) -> Send:
        return self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))

    def note(self, end: BatchEnd | None) -> None:
        if end is None:
            return
        assert end.batch not in self.ends, "a batch ends once"
        self.ends[end.batch] = end
        assert not [f for f in self.flying if f.batch == end.batch], "something is still in flight"
        if end.error:
            assert end.batch in self.broken
        else:
            assert sorted(map(repr, self.arrived[end.batch])) == sorted(
                map(repr, self.expected[end.batch])
            )

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        send = self.take(data)
        self.arrived[send.batch].append(send.slice)
        self.note(self.book.completed(send.ticket, self.now))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), may_retry=st.sampled_from([True, True, True, False]))
    def fail(self, data: st.DataObject, may_retry: bool) -> None:
        send = self.take(data)
        self.broken.add(send.batch)
        self.note(self.book.failed(send.ticket, "why", self.now, may_retry=may_retry))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def break_path(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(self.flying)).path
        for send in [f for f in self.flying if f.path == path]:
            self.flying.remove(send)
            self.broken.add(send.batch)
            self.note(self.book.failed(send.ticket, "link down", self.now))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(sorted(self.expected)))
        if batch not in self.ends:
            self.broken.add(batch)
        self.note(self.book.cancel(batch, "cancelled"))

    @rule(seconds=st.floats(0.001, 10))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def book_is_sound(self) -> None:
        if not hasattr(self, "book"):
            return
        self.book.check_invariants()
        for view in self.book.views(self.now):
            assert view.pause_s <= POLICY.max_pause_s
        wake = self.book.wake_s(self.now)
        assert wake is None or self.now < wake <= self.now + POLICY.max_pause_s
        if not self.flying and set(self.expected) - set(self.ends):
            # Nothing would ever happen again if `next` had nothing to say now.
            self.send(1)
            assert self.flying

    def teardown(self) -> None:
        """From any state, working paths carry what is left, in bounded steps."""
        if not hasattr(self, "book"):
            return
        for _ in range(1000):
            self.send(100)
            if not self.flying:
                break
            send = self.flying.pop(0)
            self.now += 0.01
            self.arrived[send.batch].append(send.slice)
            self.note(self.book.completed(send.ticket, self.now))
        assert set(self.ends) == set(self.expected)


TestPathBook = PathBookMachine.TestCase
TestPathBook.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
