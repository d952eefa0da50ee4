"""Look-ups that wait for those behind them: who is answered when, and what a bug among them costs."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from daemons.client.synthetic_nodes import block_hash, sealed_block
from daemons.core.errors import McError
from daemons.core.ids import Epoch, HostId, NodeId
from daemons.mc_master.blocks.lookups import MAX_TOGETHER, Lookups
from daemons.protocol.lookup import Match, MatchReply
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.rpc import Loop
from daemons.store.directory.directory import Directory

HASHES = [block_hash(number) for number in range(4)]
LOOK = Match(hashes=HASHES)


class Asked:
    """A call as look-ups see it."""

    def __init__(self, *, has_followers: bool) -> None:
        self.has_followers = has_followers
        self.answer: MatchReply | McError | None = None

    @property
    def is_done(self) -> bool:
        return self.answer is not None

    def reply(self, message: MatchReply) -> None:
        self.answer = message

    def fail(self, error: McError) -> None:
        self.answer = error


@pytest.fixture
def state() -> Iterator[Any]:
    """Of a master that knows of HASHES on one node."""
    directory, host = Directory(), HostId("h")
    address = DataAddress(host_id=host, unix_path="/u", tcp="127.0.0.1:1", epoch=Epoch(1))
    region = RegionRef(address=address, region_id=1, size_bytes=1 << 30)
    directory.add_node(NodeId("n"), host, region)
    directory.record_sealed(NodeId("n"), SealedBlocks.pack(map(sealed_block, range(4))), now_s=0)
    loop = Loop()
    yield SimpleNamespace(directory=directory, loop=loop, use_s=lambda: 1.0, now_s=lambda: 1.0)
    loop.close()


def asked(lookups: Lookups, message: Match = LOOK, *, has_followers: bool) -> Asked:
    call: Any = Asked(has_followers=has_followers)
    lookups.match(call, message)
    assert isinstance(call, Asked)
    return call


def num_found(call: Asked) -> int | None:
    return len(call.answer.locations) if isinstance(call.answer, MatchReply) else None


def test_who_has_followers_waits_for_them_up_to_a_bound(state: Any) -> None:
    lookups = Lookups(state, state)
    waiting = [asked(lookups, has_followers=True) for _ in range(MAX_TOGETHER - 1)]
    assert not any(call.is_done for call in waiting)
    last = asked(lookups, has_followers=True)
    assert [num_found(call) for call in [*waiting, last]] == [len(HASHES)] * MAX_TOGETHER


@pytest.mark.parametrize("wants_grants", [False, True])
def test_the_last_one_ends_the_wait(state: Any, *, wants_grants: bool) -> None:
    state.grants = SimpleNamespace(sign=lambda *_, **__: [])
    lookups = Lookups(state, state)
    first = asked(lookups, has_followers=True)
    last = asked(
        lookups,
        Match(hashes=HASHES[:2], wants_grants=wants_grants),
        has_followers=wants_grants,
    )
    assert (num_found(first), num_found(last)) == (4, 2)


def test_a_bug_among_those_that_wait_fails_them_and_nothing_that_comes_next(
    state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **_named: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(state.directory, "match_together", fails)
    lookups = Lookups(state, state)
    waiting = [asked(lookups, has_followers=True) for _ in range(2)]
    lookups.settle()
    assert all(isinstance(call.answer, McError) for call in waiting)
    assert state.loop.num_errors == 1
    assert num_found(asked(lookups, has_followers=False)) == len(HASHES)
