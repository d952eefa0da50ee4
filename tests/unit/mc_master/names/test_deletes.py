"""When a delete is answered, and when it is not sure to stay one."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from daemons.core.clock import ManualClock
from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.names.deletes import MAX_DELETES, Delete, Deletes
from daemons.mc_master.state import MasterState
from daemons.protocol.block import DeadName
from daemons.protocol.objects import DeleteNamesReply
from daemons.rpc import Loop

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
KEY, OTHER = BlockHash(b"k" * 16), BlockHash(b"o" * 16)


class Asked:
    """A call and what was said to it."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.answer_by_s = deadline_s - 1.0  # a fifth of the 5 s
        self.said: list[DeleteNamesReply | McError] = []

    def reply(self, reply: DeleteNamesReply) -> None:
        self.said.append(reply)

    def fail(self, error: McError) -> None:
        self.said.append(error)


class Bench:
    """Deletes on a clock of the test's."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.loop = Loop(self.clock)
        state = SimpleNamespace(loop=self.loop, now_s=self.clock)
        self.deletes = Deletes(cast(MasterState, state))

    def delete(
        self, told: set[NodeId], keys: tuple[BlockHash, ...] = (KEY,), unconfirmed: Any = ()
    ) -> Asked:
        asked = Asked(self.clock() + 5.0)
        delete = Delete(cast(Any, asked), bytes(len(keys)), told, set(unconfirmed))
        self.deletes.begin(delete, keys)
        return asked

    def confirm(self, node: NodeId, *keys: BlockHash) -> None:
        self.deletes.confirm(node, [DeadName(key=key, version=7) for key in keys])


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loop.close()


def test_it_is_answered_once_when_each_node_has_logged_each_name(bench: Bench) -> None:
    asked = bench.delete({A, B}, (KEY, OTHER))
    bench.confirm(A, KEY, OTHER)
    bench.confirm(B, KEY)
    assert asked.said == []
    bench.confirm(B, OTHER)
    bench.confirm(B, OTHER)
    bench.deletes.give_up(A)
    assert asked.said == [DeleteNamesReply(states=bytes(2), num_unconfirmed=0)]


def test_a_lost_node_is_counted_where_two_others_have_logged_it(bench: Bench) -> None:
    asked = bench.delete({A, B, C})
    bench.confirm(A, KEY)
    bench.deletes.give_up(C)
    assert asked.said == []
    bench.confirm(B, KEY)
    assert asked.said == [DeleteNamesReply(states=bytes(1), num_unconfirmed=1)]


def test_with_one_log_alone_it_is_not_sure_to_stay_and_says_whom_it_waits_for(bench: Bench) -> None:
    asked = bench.delete({A}, unconfirmed={C})
    bench.confirm(A, KEY)
    [error] = asked.said
    assert isinstance(error, Unavailable)
    assert "only 1 nodes have logged it, c did not answer; delete again" in error.message


def test_it_is_answered_before_its_time_ends(bench: Bench) -> None:
    asked = bench.delete({A, B, C})
    bench.confirm(A, KEY)
    bench.confirm(B, KEY)
    bench.clock.advance(4.1)
    bench.loop.run_until(lambda: bool(asked.said), 20)
    assert asked.said == [DeleteNamesReply(states=bytes(1), num_unconfirmed=1)]


def test_what_nobody_was_told_of_is_answered_at_once(bench: Bench) -> None:
    assert bench.delete(set()).said == [DeleteNamesReply(states=bytes(1), num_unconfirmed=0)]


def test_only_so_many_run_at_a_time(bench: Bench) -> None:
    for _ in range(MAX_DELETES):
        bench.deletes.check_room()
        bench.delete({A})
    with pytest.raises(Exhausted, match="wait for one"):
        bench.deletes.check_room()
    bench.confirm(A, KEY)
    bench.deletes.check_room()
