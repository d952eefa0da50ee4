"""Which reports show that another master lived, and which are passed over."""

import msgspec

from daemons.client.synthetic_nodes import block_hash, sealed_block
from daemons.core.ids import Epoch, Incarnation, NodeId
from daemons.mc_master.names.other_lives import OtherLives
from daemons.protocol.block import DeadName
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report
from daemons.store.directory.names import COUNTER_BITS, NameTable

OURS = Incarnation(3)
NODE, OTHER = NodeId("n"), NodeId("o")


def version(incarnation: int, counter: int) -> int:
    return (incarnation << COUNTER_BITS) + counter


def report(
    sequence: int, *, sealed: int = 0, dead: int = 0, more: bool = False, node: NodeId = NODE
) -> Report:
    blocks = [msgspec.structs.replace(sealed_block(1), version=sealed)] if sealed else []
    return Report(
        node=node,
        epoch=Epoch(1),
        sequence=sequence,
        sealed=SealedBlocks.pack(blocks),
        freed=[],
        used_bytes=0,
        capacity_bytes=1,
        dead=[DeadName(key=block_hash(0), version=dead)] if dead else [],
        is_announcing=more,
    )


def test_a_higher_incarnation_shows_another_life_whether_sealed_or_dead() -> None:
    for told in (report(5, sealed=version(4, 1)), report(5, dead=version(4, 1))):
        assert OtherLives(NameTable(OURS), OURS).shown_by(told) == 4


def test_an_earlier_life_shows_nothing() -> None:
    lives = OtherLives(NameTable(OURS), OURS)
    assert lives.shown_by(report(1, sealed=version(2, 9), dead=version(1, 1))) is None


def test_our_own_number_shows_a_lost_state_in_the_first_announcement_of_a_node_alone() -> None:
    names = NameTable(OURS)
    lives = OtherLives(names, OURS)
    assert lives.shown_by(report(1, more=True)) is None
    assert lives.shown_by(report(2, sealed=version(3, 50), more=True)) == OURS
    assert lives.shown_by(report(3)) is None
    assert lives.shown_by(report(1, sealed=version(3, 60))) is None, "it announced to us before"
    assert names.next_version() == version(3, 61), "we go on above it"
    assert lives.shown_by(report(1, sealed=version(3, 70), node=OTHER)) == OURS


def test_an_announcement_of_a_node_that_went_in_the_middle_is_over() -> None:
    lives = OtherLives(NameTable(OURS), OURS)
    assert lives.shown_by(report(1, more=True)) is None
    lives.on_gone(NODE)
    assert lives.shown_by(report(2, sealed=version(3, 50), more=True)) is None


def test_numbers_that_no_master_gives_out_show_nothing_and_hide_no_other() -> None:
    made_up = (1 << 64) - 1
    lives = OtherLives(NameTable(OURS), OURS)
    assert lives.shown_by(report(5, sealed=made_up)) is None
    assert lives.shown_by(report(6, sealed=made_up, dead=version(4, 1))) == 4
