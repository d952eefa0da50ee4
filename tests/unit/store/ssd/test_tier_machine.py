"""Every order of puts, deletes, clears, reclaiming, crashes and restarts against a model of what may be there."""

from collections.abc import Sequence
from concurrent.futures import Future
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from unit.store.ssd.crash_disk import CrashDisk, Crashed, aligned_copy
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.clock import ManualClock
from daemons.core.errors import Conflict, Exhausted, Unavailable
from daemons.core.ids import BlockHash
from daemons.core.units import KIB
from daemons.store.ssd import SsdSettings, SsdTier

NUM_KEYS = 8
KEYS = st.integers(0, NUM_KEYS - 1)
NAMESPACES = (b"even", b"odd")
SETTINGS = SsdSettings(
    capacity_bytes=4 * 48 * KIB + 16 * KIB,
    bucket_bytes=48 * KIB,
    batch_bytes=40 * KIB,
    max_queued_bytes=192 * KIB,
    read_workers=0,
    rest_s=1.0,
)


def layer_bytes(number: int) -> int:
    """Of each size one: packed behind the header, over a page, on pages of its own."""
    return (100, 100, 3000, 14_336)[number % 4]


class Op:
    """What a put, delete or eviction makes of a key: the version that is there after it, or None."""

    def __init__(self, state: int | None, done: "Future[bool] | None") -> None:
        self.state = state
        self.done = done

    @property
    def is_durable(self) -> bool:
        return self.done is not None and self.done.done() and self.done.exception() is None

    @property
    def has_failed(self) -> bool:
        return self.done is not None and self.done.done() and self.done.exception() is not None


class TierMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = CrashDisk(random=self.random)
        self.clock = ManualClock()
        self.ops: dict[int, list[Op]] = {number: [] for number in range(NUM_KEYS)}
        self.versions = dict.fromkeys(range(NUM_KEYS), 0)
        self.now: dict[int, int | None] = dict.fromkeys(range(NUM_KEYS))
        self.unsure: set[int] = set()
        """Had a put that a crash met: nobody was told that it took another version's place."""
        self.has_lost = False
        self.open()

    def open(self, *, after_loss: bool = False) -> None:
        while True:
            try:
                self.tier = SsdTier(
                    self.disk.directory(),
                    SETTINGS,
                    on_dropped=self.dropped,
                    clock=self.clock,
                    random_bits=self.random.getrandbits,
                )
            except Crashed:
                self.disk.crash()
            else:
                break
        for number, ops in self.ops.items():
            held = self.tier.get(key(number))
            state = held.version if held is not None else None
            allowed = self.allowed(number)
            newest = max((version for version in allowed if version), default=0)
            is_unsure = number in self.unsure and state is not None and state < newest
            assert state in allowed or (after_loss and (state is None or is_unsure))
            if any(op.state is not None and not op.is_durable for op in ops):
                self.unsure.add(number)
            self.now[number] = state
            ops[:] = [Op(state, done())]
            if self.random.random() < 0.5:  # all, and what was read stays
                self.read(number)

    def allowed(self, number: int) -> set[int | None]:
        """After a crash: what the last durable operation left, or any later one."""
        ops = self.ops[number]
        durable = [index for index, op in enumerate(ops) if op.is_durable]
        if not durable:
            return {None} | {op.state for op in ops}
        return {op.state for op in ops[durable[-1] :]}

    def dropped(self, hashes: Sequence[BlockHash], why: str) -> None:
        assert why == "evicted"
        for number in range(NUM_KEYS):
            if key(number) in hashes:
                self.ops[number].append(Op(None, None))
                self.now[number] = None

    @rule(numbers=st.lists(KEYS, min_size=1, max_size=4), is_new=st.booleans())
    def put(self, numbers: list[int], is_new: bool) -> None:
        for number in numbers:
            self.put_one(number, is_new)

    def put_one(self, number: int, is_new: bool) -> None:
        version = self.versions[number] + is_new or 1
        block, stored = make_block(
            number,
            version=version,
            layer_bytes=layer_bytes(number),
            namespace=NAMESPACES[number % 2],
        )
        try:
            future = self.tier.put(block, stored)
        except (Exhausted, Unavailable, Conflict):
            return
        self.versions[number] = version
        if future.done():
            assert future.result()
            assert self.now[number] == version
            return
        op = Op(version, future)
        self.ops[number].append(op)

        def on_done(result: "Future[bool]") -> None:
            if result.exception() is None and result.result():
                self.now[number] = version
            elif result.exception() is None:
                # Deleted before it was stored: the delete behind it tells what is there.
                op.done = None

        future.add_done_callback(on_done)

    @rule(numbers=st.lists(KEYS, min_size=1, max_size=3))
    def delete(self, numbers: list[int]) -> None:
        future = self.tier.delete([key(number) for number in numbers])
        self.gone(numbers, future)

    @rule(namespace=st.sampled_from([None, *NAMESPACES]))
    def clear(self, namespace: bytes | None) -> None:
        future = self.tier.clear(namespace)
        self.gone([n for n in range(NUM_KEYS) if namespace in (None, NAMESPACES[n % 2])], future)

    def gone(self, numbers: list[int], future: "Future[bool]") -> None:
        for number in numbers:
            self.ops[number].append(Op(None, future))
            self.now[number] = None

    @rule(steps=st.integers(1, 4))
    def write(self, steps: int) -> None:
        self.run(steps)

    @rule(
        numbers=st.lists(KEYS, min_size=2, max_size=5),
        deleted=st.lists(KEYS, max_size=2),
        is_cleared=st.booleans(),
        ops=st.integers(0, 7),
    )
    def burst_and_crash(
        self, numbers: list[int], deleted: list[int], is_cleared: bool, ops: int
    ) -> None:
        for number in numbers:
            self.put_one(number, is_new=True)
        if deleted:
            self.delete(deleted)
        if is_cleared:
            self.clear(NAMESPACES[ops % 2])
        self.disk.ops_left = ops
        self.run(6)
        self.crash()

    @rule()
    def crash(self) -> None:
        self.disk.crash()
        self.open()

    @rule(choice=st.integers(0, 9))
    def lose_a_file(self, choice: int) -> None:
        """Once, with a crash: what was in it may be gone, and nothing comes back."""
        if self.has_lost:
            return
        self.has_lost = True
        self.disk.crash()
        names = sorted(self.disk.inodes)
        if names:
            name = names[choice % len(names)]
            del self.disk.inodes[name], self.disk.durable_inodes[name]
        self.open(after_loss=True)

    @rule(ops=st.integers(0, 6))
    def reopen_and_crash(self, ops: int) -> None:
        self.disk.crash()
        self.disk.ops_left = ops
        self.open()
        self.disk.ops_left = None

    @rule()
    def close_and_reopen(self) -> None:
        self.tier.close()
        self.open()

    @rule(call=st.sampled_from(["write", "sync", "reserve", "truncate", "unlink"]))
    def fail_once(self, call: str) -> None:
        """The disk says EIO in one kind of call, then it rests."""
        self.disk.fault = lambda name: OSError(5, "EIO") if name == call else None
        self.tier.run_once()
        self.disk.fault = lambda _: None

    @rule()
    def rest(self) -> None:
        self.clock.advance(SETTINGS.rest_s)

    @rule(number=KEYS)
    def read_one(self, number: int) -> None:
        """So that it gets its second chance."""
        self.read(number)

    @rule(numbers=st.lists(KEYS, min_size=4, max_size=10))
    def churn(self, numbers: list[int]) -> None:
        """Replace, so that buckets fill with garbage."""
        for number in numbers:
            self.put_one(number, is_new=True)
            if number % 2:
                self.run(1)

    def run(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.tier.run_once()
        except Crashed:
            self.crash()
        self.disk.ops_left = None

    def read(self, number: int) -> None:
        expected = self.now[number]
        if expected is None:
            return
        block, stored = make_block(number, version=expected, layer_bytes=layer_bytes(number))
        target = aligned_copy(bytes(block.stored_bytes))
        try:
            self.tier.read(key(number), target)
        except Unavailable:
            assert self.tier.why_resting
            return
        assert bytes(target) == bytes(stored)

    @invariant()
    def holds(self) -> None:
        self.tier.check_invariants()
        for number in range(NUM_KEYS):
            held = self.tier.get(key(number))
            assert (held.version if held is not None else None) == self.now[number]
        assert self.tier.used_bytes <= SETTINGS.capacity_bytes


def done() -> "Future[bool]":
    future: Future[bool] = Future()
    future.set_result(True)
    return future


def test_a_crash_after_a_bucket_was_unlinked_and_its_directory_not_synced() -> None:
    """Found by the machine: blocks the tier still promised were gone."""
    machine = TierMachine()
    machine.begin(344890622)
    machine.reopen_and_crash(1)
    machine.burst_and_crash([3, 3, 1, 2], [6, 5], False, 7)
    machine.churn([7, 5, 4, 2, 7, 3, 0, 0])
    machine.close_and_reopen()
    machine.put([3, 1], True)
    machine.fail_once("sync")
    machine.crash()
    machine.holds()


TestTier = TierMachine.TestCase
TestTier.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
