"""One transfer over fake queue pairs: whatever fails, the right bytes or an error, and nothing under way afterwards."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.core.errors import TransferError
from daemons.protocol.segment import Strided
from daemons.transfer.slices import cut, spans_of
from daemons.transfer.strided import contiguous
from daemons.transfer.transports.rdma import device as device_module
from daemons.transfer.transports.rdma import mover as mover_module
from daemons.transfer.transports.rdma.mover import (
    KeyRefused,
    Keys,
    Lane,
    Mover,
    NoLaneLeft,
    NotFenced,
    Work,
)
from daemons.transfer.transports.rdma.peer import Path, PeerLost
from daemons.transfer.transports.rdma.queue_pair import Opcode
from daemons.transfer.transports.rdma.requests import Buffer, Limits
from daemons.transfer.transports.rdma.routes import Routes

SIZE = 1 << 16
BASE, FAR = 1 << 40, 1 << 41
OK, FLUSHED, ACCESS, RETRY = 0, 5, 10, 12


@pytest.fixture(autouse=True, scope="module")
def _without_pyverbs() -> Any:
    names = {
        OK: "SUCCESS",
        FLUSHED: "WR_FLUSH_ERR",
        ACCESS: "REM_ACCESS_ERR",
        RETRY: "RETRY_EXC_ERR",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mover_module, "load", lambda: SimpleNamespace(IBV_WC_REM_ACCESS_ERR=ACCESS))
        patch.setattr(mover_module, "link_names", lambda: names)
        patch.setattr(mover_module.time, "sleep", lambda _: None)
        yield
    assert device_module


@dataclass
class FakeQueuePair:
    """Moves bytes when it is polled, unless told to fail at work request `fails_at`."""

    remote: np.ndarray
    local: np.ndarray
    fails_at: int = -1
    status: int = RETRY
    depth: int = 64
    event_fd: int | None = None
    queue: list[tuple[int, tuple[int, int], Sequence[tuple[int, int, int]]]] = field(
        default_factory=list
    )
    num_done: int = 0
    is_closed: bool = False
    randomness: random.Random = field(default_factory=lambda: random.Random(1))
    device: Any = field(default_factory=lambda: SimpleNamespace(name="fake"))

    def post(self, _: Opcode, number: int, remote: tuple[int, int], pieces: Sequence[Any]) -> None:
        assert not self.is_closed, "posted on a destroyed queue pair"
        assert remote[1] == 77
        assert all(key == 55 for _, _, key in pieces)
        self.queue.append((number, remote, pieces))
        assert len(self.queue) <= self.depth

    def poll(self, max_completions: int) -> list[tuple[int, int]]:
        assert not self.is_closed, "polled a destroyed queue pair"
        completions = []
        for _ in range(self.randomness.randint(0, max_completions)):
            if not self.queue:
                break
            number, (address, _), pieces = self.queue.pop(0)
            if self.num_done == self.fails_at:
                self.queue.clear()
                return [*completions, (number, self.status)]
            at = address - FAR
            for place, length, _ in pieces:
                self.local[place - BASE : place - BASE + length] = self.remote[at : at + length]
                at += length
            self.num_done += 1
            completions.append((number, OK))
        return completions


class Scene:
    def __init__(self, fails: Sequence[tuple[int, int]], *, is_alive: bool = True) -> None:
        self.remote = np.random.default_rng(3).integers(0, 256, SIZE, np.uint8)
        self.local = np.zeros(SIZE, np.uint8)
        peer = SimpleNamespace(name="peer", is_alive=lambda: is_alive)
        keys = Keys(FAR, 1 << 30, [77] * 4, [(BASE, 1 << 30, [55] * 4)])
        self.pairs = [FakeQueuePair(self.remote, self.local, at, status) for at, status in fails]
        names = [f"path {i}" for i in range(len(fails))]
        self.routes = Routes(dict.fromkeys(names))
        self.lanes = [
            Lane(
                SimpleNamespace(peer=peer, path=Path(name, i, i), queue_pair=pair, num_reads=4),  # type: ignore[arg-type]
                keys,
            )
            for i, (name, pair) in enumerate(zip(names, self.pairs, strict=True))
        ]
        self.all_lanes = list(self.lanes)
        self.confirms = True

    def mover(
        self,
        ranges: Sequence[Strided],
        check: Callable[[], object] = lambda: None,
        finish: Callable[[int], None] | None = None,
    ) -> Mover:
        spans = [span for i, each in enumerate(ranges) for span in spans_of(each, each, i)]
        work = Work(
            Opcode.READ,
            cut(spans, 2048, max_spans=3),
            [Buffer(BASE, 0, BASE)] * len(ranges),
            Limits(1024, 1 << 30, 1 << 30, 4),
            check,
            finish,
        )
        return Mover(work, self.routes, self.lanes, self.discard)

    def discard(self, endpoint: Any) -> bool:
        assert not endpoint.queue_pair.is_closed, "destroyed twice"
        endpoint.queue_pair.is_closed = True
        endpoint.queue_pair.queue.clear()
        return self.confirms

    def check_end(self) -> None:
        """Nothing is under way, and the book of the paths is even."""
        self.routes.check_idle()
        for lane, pair in zip(self.all_lanes, self.pairs, strict=True):
            assert not pair.queue, "something may still land"
            assert pair.is_closed == (lane not in self.lanes)


BLOCKS = [contiguous(i * 3000, 2500) for i in range(20)]


@settings(max_examples=200, deadline=None)
@given(
    fails=st.lists(
        st.tuples(st.integers(-1, 30), st.sampled_from([RETRY, FLUSHED, ACCESS])),
        min_size=1,
        max_size=4,
    ),
    cancel_after=st.integers(0, 60),
    calls_back=st.booleans(),
)
def test_right_bytes_or_an_error_and_nothing_under_way(
    fails: list[tuple[int, int]], cancel_after: int, calls_back: bool
) -> None:
    scene = Scene(fails)
    finished: list[int] = []
    countdown = iter(range(cancel_after))

    def check() -> None:
        if cancel_after < 50 and next(countdown, None) is None:
            raise TransferError("cancelled")

    def finish(index: int) -> None:
        part = slice(BLOCKS[index].offset, BLOCKS[index].end)
        assert np.array_equal(scene.local[part], scene.remote[part])
        finished.append(index)

    mover = scene.mover(BLOCKS, check, finish if calls_back else None)
    try:
        mover.run()
    except TransferError:
        pass
    else:
        for block in BLOCKS:
            part = slice(block.offset, block.end)
            assert np.array_equal(scene.local[part], scene.remote[part])
        assert not calls_back or finished == list(range(len(BLOCKS)))
    assert finished == list(range(len(finished)))
    scene.check_end()


def test_slices_of_a_failed_lane_go_over_the_other() -> None:
    scene = Scene([(2, RETRY), (-1, OK)])
    scene.mover(BLOCKS).run()
    scene.check_end()
    assert scene.routes.reasons() == "fake: RETRY_EXC_ERR"
    assert scene.routes.usable() == ["path 1"]
    for block in BLOCKS:
        part = slice(block.offset, block.end)
        assert np.array_equal(scene.local[part], scene.remote[part])


def test_last_lane_that_fails_ends_the_transfer() -> None:
    scene = Scene([(2, RETRY), (0, RETRY)])
    with pytest.raises(NoLaneLeft):
        scene.mover(BLOCKS).run()
    scene.check_end()


def test_refused_key_is_not_the_paths_fault() -> None:
    scene = Scene([(1, ACCESS)])
    with pytest.raises(KeyRefused):
        scene.mover(BLOCKS).run()
    scene.check_end()
    assert scene.routes.usable() == ["path 0"]


def test_unconfirmed_end_of_a_lane_ends_a_write_before_another_lane_repeats_it() -> None:
    scene = Scene([(1, RETRY), (-1, OK)])
    scene.confirms = False
    mover = scene.mover(BLOCKS)
    with pytest.raises(NotFenced):
        mover.run()
    assert not mover.is_fenced


def test_peer_that_is_gone_is_noticed_while_nothing_moves() -> None:
    scene = Scene([(-1, OK)], is_alive=False)
    scene.pairs[0].poll = lambda _: []  # type: ignore[method-assign]
    with pytest.raises(PeerLost):
        scene.mover(BLOCKS).run()
    scene.check_end()


def test_callback_that_raises_ends_the_transfer() -> None:
    scene = Scene([(-1, OK), (-1, OK)])

    def fail(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scene.mover(BLOCKS, finish=fail).run()
    scene.check_end()
