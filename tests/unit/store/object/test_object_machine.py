"""Puts, deletes, faults, compaction, eviction and restarts in random orders against a model of what may be there."""

from collections.abc import Sequence
from concurrent.futures import Future
from random import Random

import pytest
from unit.store.object.memory_bucket import MemoryBucket
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.clock import ManualClock
from daemons.core.errors import Conflict, Exhausted, Unavailable
from daemons.core.ids import BlockHash
from daemons.core.units import KIB
from daemons.store.object import ObjectSettings, ObjectTier

NUM_KEYS = 40
NUM_STEPS = 200
SETTINGS = ObjectSettings(
    capacity_bytes=8 * 64 * KIB,
    part_bytes=64 * KIB,
    read_workers=0,
    uploads=1,
    rest_s=1.0,
    commit_delay_s=1.0,
)


class Op:
    """What a put, delete or eviction makes of a key: the version that is there after it, or None."""

    def __init__(self, state: int | None, done: "Future[bool] | None") -> None:
        self.state = state
        self.done = done

    @property
    def is_durable(self) -> bool:
        """A put that was deleted before it was written has the result False."""
        done = self.done
        return done is not None and done.done() and not done.exception() and done.result()


class Machine:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bucket = MemoryBucket()
        self.clock = ManualClock()
        self.ops: dict[int, list[Op]] = {number: [] for number in range(NUM_KEYS)}
        self.versions = dict.fromkeys(range(NUM_KEYS), 0)
        self.now: dict[int, int | None] = dict.fromkeys(range(NUM_KEYS))
        self.open()

    def open(self) -> None:
        self.tier = ObjectTier(
            self.bucket,
            SETTINGS,
            on_dropped=self.dropped,
            clock=self.clock,
            random_bits=self.random.getrandbits,
        )
        self.bucket.faults.clear()
        assert self.tier.run_once(), "it opens"
        for number, ops in self.ops.items():
            held = self.tier.get(key(number))
            state = held.version if held is not None else None
            assert state in self.allowed(number), f"key {number} has {state} after a start"
            self.now[number] = state
            done: Future[bool] = Future()
            done.set_result(True)
            ops[:] = [Op(state, done)]

    def allowed(self, number: int) -> set[int | None]:
        """The last that is there to stay, or any that came after it."""
        ops = self.ops[number]
        last = max((at for at, op in enumerate(ops) if op.is_durable), default=None)
        states = {None} if last is None else {ops[last].state}
        return states | {op.state for op in ops[(last or 0) :]}

    def dropped(self, hashes: Sequence[BlockHash], why: str) -> None:
        assert why == "evicted"
        for number in range(NUM_KEYS):
            if key(number) in hashes:
                self.now[number] = None
                self.ops[number].append(Op(None, None))

    def put(self, number: int, is_new: bool) -> None:
        if is_new or not self.versions[number]:
            self.versions[number] += 1
        version = self.versions[number]
        block, source = make_block(number, version=version, layer_bytes=100 + number * 600)
        try:
            done = self.tier.put(block, source)
        except (Exhausted, Unavailable, Conflict):
            return
        self.ops[number].append(Op(version, done))
        if done.done():
            self.now[number] = version

    def delete(self, numbers: set[int]) -> None:
        done = self.tier.delete([key(number) for number in numbers])
        for number in numbers:
            self.ops[number].append(Op(None, done))
            self.now[number] = None

    def fail_soon(self, faults: list[str | None]) -> None:
        self.bucket.faults[:] = faults  # type: ignore[assignment]

    def work(self, seconds: float) -> None:
        self.clock.advance(seconds)
        waiting = {
            n: [op for op in ops if op.done and not op.done.done()] for n, ops in self.ops.items()
        }
        self.tier.run_once()
        for number, ops in waiting.items():
            for op in ops:
                if op.state is not None and op.is_durable:
                    self.now[number] = op.state

    def restart(self) -> None:
        self.open()

    def what_is_there_is_right(self) -> None:
        self.tier.check_invariants()
        assert self.tier.used_bytes <= SETTINGS.capacity_bytes + 64 * KIB
        for number, version in self.now.items():
            held = self.tier.get(key(number))
            assert (held.version if held else None) == version, f"key {number}"
            if held is not None:
                block, source = make_block(
                    number, version=held.version, layer_bytes=100 + number * 600
                )
                assert held == block
                if not self.tier.why_resting:
                    assert self.tier.read(key(number)) == source

    def step(self) -> None:
        random = self.random
        match random.choice(("put", "put", "put", "work", "work", "delete", "fail", "restart")):
            case "put":
                self.put(random.randrange(NUM_KEYS), random.random() < 0.3)
            case "delete":
                self.delete(set(random.sample(range(NUM_KEYS), random.randint(1, 3))))
            case "work":
                self.work(random.choice((0.5, 1.0, 40.0)))
            case "fail" if random.random() < 0.3:
                faults = (None, None, "before", "after")
                self.fail_soon(random.choices(faults, k=random.randint(1, 6)))
            case "restart" if random.random() < 0.2:
                self.restart()
        self.what_is_there_is_right()


@pytest.mark.parametrize("seed", range(5))
def test_what_is_there_is_what_was_put_and_not_deleted(seed: int) -> None:
    machine = Machine(seed)
    for _ in range(NUM_STEPS):
        machine.step()
    machine.tier.close()
