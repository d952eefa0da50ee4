"""Which reports of a node count, and what is answered to the others."""

from types import SimpleNamespace
from typing import Any

import pytest

from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.blocks.report_order import out_of_order
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report, ReportReply

CLEARED = BlockHash(bytes(16))


def answer(member: Any, sequence: int) -> ReportReply | None:
    report = Report(
        node=NodeId("n"),
        epoch=1,
        sequence=sequence,
        sealed=SealedBlocks(),
        freed=[],
        used_bytes=0,
        capacity_bytes=0,
    )
    return out_of_order(member, report, lambda _node, _sealed: {CLEARED})


def member(expected: int | None) -> Any:
    return SimpleNamespace(next_sequence=expected, has_old_blocks=False)


@pytest.mark.parametrize(("expected", "sequence"), [(None, 1), (None, 7), (1, 1), (7, 7)])
def test_the_next_one_and_any_after_a_join_is_recorded(expected: int | None, sequence: int) -> None:
    heard = member(expected)
    assert answer(heard, sequence) is None
    assert (heard.next_sequence, heard.has_old_blocks) == (expected, False)


def test_a_repeat_is_passed_over_and_answered_as_the_first_was() -> None:
    heard = member(7)
    assert answer(heard, 6) == answer(heard, 2) == ReportReply(unwanted=[CLEARED])
    assert (heard.next_sequence, heard.has_old_blocks) == (7, False)


@pytest.mark.parametrize("sequence", [0, 1])
def test_a_count_from_the_beginning_voids_what_was_known(sequence: int) -> None:
    heard = member(7)
    assert answer(heard, sequence) is None
    assert heard.has_old_blocks


def test_after_a_gap_all_is_to_be_announced_and_what_was_known_stays_until_then() -> None:
    heard = member(7)
    assert answer(heard, 9) == ReportReply(announce=True)
    assert (heard.next_sequence, heard.has_old_blocks) == (None, True)
    assert answer(heard, 1) is None
