"""Entries for what is being computed: found by chain, short-lived, bounded."""

import pytest

from daemons.conductor import expected_prefixes
from daemons.conductor.conductor import Conductor
from daemons.conductor.expected_prefixes import LIFE_S, ExpectedPrefixes
from daemons.conductor.instance_table import InstanceDescription
from daemons.conductor.prefill_placement import Tuning
from daemons.conductor.view import PlacementRequest
from daemons.core.ids import BlockHash, HostId, NodeId, RequestId
from daemons.protocol.node import InstanceLoad

P0, P1 = NodeId("p0"), NodeId("p1")


def chain(text: str) -> list[BlockHash]:
    return [BlockHash(letter.encode()) for letter in text]


def test_a_chain_is_found_as_far_as_one_instance_makes_it() -> None:
    expected = ExpectedPrefixes()
    expected.add(P0, chain("cdef"), ready_s=2.0, now_s=0)
    assert expected.find(chain("abcdexyz"), 2, now_s=1) == (P0, 5)
    assert expected.find(chain("abcdexyz"), 5, now_s=1) is None
    assert expected.find(chain("ab"), 2, now_s=1) is None
    expected.add(P1, chain("ef"), ready_s=2.0, now_s=0)
    assert expected.find(chain("abcdef"), 2, now_s=1) == (P0, 4)
    assert expected.find(chain("abcdef"), 4, now_s=1) == (P1, 6)


def test_entries_end_a_while_after_they_should_be_there() -> None:
    expected = ExpectedPrefixes()
    expected.add(P0, chain("ab"), ready_s=2.0, now_s=0)
    assert expected.find(chain("ab"), 0, now_s=2 + LIFE_S - 0.1) == (P0, 2)
    assert expected.find(chain("ab"), 0, now_s=2 + LIFE_S) is None
    expected.add(P0, chain("xyz"), ready_s=20.0, now_s=10)
    assert len(expected) == 3


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected_prefixes, "MAX_BLOCKS", 10)
    expected = ExpectedPrefixes()
    for number in range(50):
        expected.add(P0, [BlockHash(bytes([number, i])) for i in range(4)], ready_s=9, now_s=0)
    assert len(expected) == len(expected._by_hash) == 8


def test_a_burst_of_siblings_goes_where_the_first_makes_their_prefix() -> None:
    """Where the other instance has something to do, queueing behind the first is sooner than computing all again."""
    conductor = Conductor(Tuning())
    for node in (P0, P1):
        conductor.join(InstanceDescription(node, "prefill", HostId(node), "m", b""))
    conductor.join(InstanceDescription(NodeId("d"), "decode", HostId("d"), "m", b""))
    busy = InstanceLoad(num_running=1, queued_tokens=4000)
    conductor.hear(P1, busy, now_s=0)
    shared = chain("abcdefghij")
    placements = []
    for number in range(3):
        hashes = [*shared, BlockHash(bytes([number]))]
        found = conductor.expected(hashes, 0, now_s=0)
        node, blocks = found if found is not None else (None, 0)
        request = PlacementRequest(
            RequestId(str(number)), "m", 11_000, 10,
            expected_on=node, expected_tokens=1000 * blocks,
        )  # fmt: skip
        placement = conductor.place(request, now_s=0)
        conductor.account(placement, request, now_s=0)
        conductor.expect(placement, hashes, 0, now_s=0)
        placements.append(placement)
    assert [p.prefill.node for p in placements] == [P0] * 3
    assert [p.matched_tokens for p in placements] == [0, 10_000, 10_000]
    firsts = placements[0].predicted_ttft_s
    assert placements[1].predicted_ttft_s < 1.2 * firsts
