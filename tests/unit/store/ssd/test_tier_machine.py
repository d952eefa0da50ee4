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

KEYS = st.integers(0, 11)
NAMESPACES = (b"even", b"odd")
SETTINGS = SsdSettings(
    capacity_bytes=4 * 96 * KIB,
    bucket_bytes=96 * KIB,
    batch_bytes=48 * KIB,
    max_queued_bytes=192 * KIB,
    read_workers=0,
    rest_s=1.0,
)


def layer_bytes(number: int) -> int:
    """Of each size one: packed behind the header, over a page, on pages of its own."""
    return (100, 3000, 15_000, 16_384)[number % 4]


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
        self.disk = CrashDisk(random=Random(seed))
        self.clock = ManualClock()
        self.ops: dict[int, list[Op]] = {number: [] for number in range(12)}
        self.versions = dict.fromkeys(range(12), 0)
        self.now: dict[int, int | None] = dict.fromkeys(range(12))
        self.open()

    def open(self) -> None:
        while True:
            try:
                self.tier = SsdTier(
                    self.disk.directory(),
                    SETTINGS,
                    on_dropped=self.dropped,
                    clock=self.clock,
                )
            except Crashed:
                self.disk.crash()
            else:
                break
        for number, ops in self.ops.items():
            held = self.tier.get(key(number))
            state = held.version if held is not None else None
            assert state in self.allowed(number)
            self.now[number] = state
            ops[:] = [Op(state, done())]

    def allowed(self, number: int) -> set[int | None]:
        """After a crash: what the last durable operation left, or any later one."""
        ops = self.ops[number]
        durable = [index for index, op in enumerate(ops) if op.is_durable]
        if not durable:
            return {None} | {op.state for op in ops}
        return {op.state for op in ops[durable[-1] :]}

    def dropped(self, hashes: Sequence[BlockHash], why: str) -> None:
        assert why == "evicted"
        for number in range(12):
            if key(number) in hashes:
                self.ops[number].append(Op(None, None))
                self.now[number] = None

    @rule(number=KEYS, is_new=st.booleans())
    def put(self, number: int, is_new: bool) -> None:
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
        self.gone([n for n in range(12) if namespace in (None, NAMESPACES[n % 2])], future)

    def gone(self, numbers: list[int], future: "Future[bool]") -> None:
        for number in numbers:
            self.ops[number].append(Op(None, future))
            self.now[number] = None

    @rule(steps=st.integers(1, 4))
    def write(self, steps: int) -> None:
        self.run(steps)

    @rule(steps=st.integers(1, 6), ops=st.integers(0, 12))
    def write_and_crash(self, steps: int, ops: int) -> None:
        self.disk.ops_left = ops
        self.run(steps)
        self.crash()

    @rule()
    def crash(self) -> None:
        self.disk.crash()
        self.open()

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
    def read_much(self, number: int) -> None:
        """So that it gets its second chance."""
        self.read(number)

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
            assert self.tier.get(key(number)) is None
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
        for number in range(12):
            self.read(number)
        assert self.tier.used_bytes <= SETTINGS.capacity_bytes


def done() -> "Future[bool]":
    future: Future[bool] = Future()
    future.set_result(True)
    return future


TestTier = TierMachine.TestCase
TestTier.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
