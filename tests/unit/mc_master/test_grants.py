"""Grants in replies: what the master signs is what the owner lets in, and no more."""

from collections.abc import Sequence

import pytest

from daemons.client.readable import grants_of
from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.mc_master.grants import ReplyGrants
from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import DataAddress, RegionGrant, RegionRef, Strided
from daemons.store.segment.runs import runs_of
from daemons.transfer.capability import MAX_RANGES, BadCapability, CapabilityKey, encode_grant
from daemons.transfer.strided import contiguous

SECRET = b"of this cluster" * 4
NODE = NodeId("node-a")
EPOCH = Epoch(7)
LENGTH, TRAILER = 4096, 64
SLOT = LENGTH + TRAILER
OWNER_AHEAD_S = 1000.0


def region(region_id: int = 1, epoch: Epoch = EPOCH) -> RegionRef:
    address = DataAddress(host_id=HostId("h"), unix_path="", tcp="h:1", epoch=epoch)
    return RegionRef(address=address, region_id=region_id, size_bytes=1 << 40)


def locations(
    offsets: Sequence[int], at: RegionRef | None = None, node: NodeId = NODE
) -> list[BlockLocation]:
    return [
        BlockLocation(
            hash=BlockHash(index.to_bytes(16, "big")),
            node=node,
            region=at or region(),
            offset=offset,
            length=LENGTH,
            trailer_bytes=TRAILER,
            version=1,
            seal_checksum=0,
            num_layers=1,
        )
        for index, offset in enumerate(offsets)
    ]


def scattered(count: int) -> list[int]:
    """No three at one step, so that a run has two blocks."""
    return [index * index * SLOT * 2 for index in range(count)]


def master(secret: bytes | None = SECRET) -> ReplyGrants:
    grants = ReplyGrants(None if secret is None else lambda _: secret)
    grants.hear(NODE, EPOCH, int(OWNER_AHEAD_S * 1000), now_s=0.0)
    return grants


def check(signed: RegionGrant, wanted: Strided, *, now_s: float, operation: str = "read") -> None:
    """As the owner does, by its own clock."""
    key = CapabilityKey(EPOCH, SECRET, lambda: now_s + OWNER_AHEAD_S)
    key.check(encode_grant(signed.grant), signed.region_id, operation, [wanted], None)  # type: ignore[arg-type]


def test_without_a_secret_there_are_none() -> None:
    assert master(None).sign(locations([0]), now_s=0.0, ttl_s=10) == []


def test_it_opens_payload_and_trailer_for_a_read_until_the_owners_clock_says_so() -> None:
    (signed,) = master().sign(locations([SLOT, 2 * SLOT, 9 * SLOT]), now_s=5.0, ttl_s=10)
    assert (signed.epoch, signed.region_id) == (EPOCH, 1)
    for offset in (SLOT, 2 * SLOT, 9 * SLOT):
        check(signed, contiguous(offset, SLOT), now_s=14.9)
    for wanted in (contiguous(0, 8), contiguous(3 * SLOT, 1), contiguous(9 * SLOT, SLOT + 1)):
        with pytest.raises(BadCapability, match="leaves the ranges"):
            check(signed, wanted, now_s=6)
    with pytest.raises(BadCapability, match="read, not write"):
        check(signed, contiguous(SLOT, 1), now_s=6, operation="write")
    with pytest.raises(BadCapability, match="expired"):
        check(signed, contiguous(SLOT, 1), now_s=15.1)


def test_a_reply_of_more_runs_than_a_grant_holds_gets_one_for_each_512() -> None:
    wanted = locations(scattered(5 * MAX_RANGES))
    runs = list(runs_of(wanted))
    assert len(runs) > 2 * MAX_RANGES
    signed = master().sign(wanted, now_s=0.0, ttl_s=10)
    assert [len(each.grant.ranges) for each in signed[:-1]] == [MAX_RANGES] * (len(signed) - 1)
    assert sum(len(each.grant.ranges) for each in signed) == len(runs)
    by_first = grants_of(runs, signed)
    for run in runs:
        grant = RegionGrant(epoch=EPOCH, region_id=1, grant=by_first[run.first])
        for location in wanted[run.first : run.first + run.num_blocks]:
            check(grant, contiguous(location.offset, SLOT), now_s=1)
    with pytest.raises(BadCapability, match="leaves the ranges"):
        check(signed[0], contiguous(wanted[-1].offset, 1), now_s=1)


def test_each_region_has_its_own() -> None:
    wanted = locations([0, SLOT]) + locations([5 * SLOT], region(2)) + locations([9 * SLOT])
    signed = master().sign(wanted, now_s=0.0, ttl_s=10)
    assert [each.region_id for each in signed] == [1, 2]
    check(signed[0], contiguous(9 * SLOT, SLOT), now_s=1)
    with pytest.raises(BadCapability):
        check(signed[1], contiguous(9 * SLOT, SLOT), now_s=1)


def test_an_owner_that_is_gone_or_began_a_new_life_gets_none() -> None:
    grants = master()
    assert grants.sign(locations([0], node=NodeId("other")), now_s=0.0, ttl_s=10) == []
    assert grants.sign(locations([0], region(epoch=Epoch(8))), now_s=0.0, ttl_s=10) == []
    grants.hear(NODE, Epoch(8), 0, now_s=0.0)
    assert grants.sign(locations([0]), now_s=0.0, ttl_s=10) == []
    assert len(grants.sign(locations([0], region(epoch=Epoch(8))), now_s=0.0, ttl_s=10)) == 1
    grants.forget(NODE)
    assert grants.sign(locations([0], region(epoch=Epoch(8))), now_s=0.0, ttl_s=10) == []


def test_what_came_late_does_not_shorten_grants() -> None:
    grants = master()
    grants.hear(NODE, EPOCH, int(OWNER_AHEAD_S * 1000), now_s=8.0)  # 8 seconds on its way
    (signed,) = grants.sign(locations([0]), now_s=10.0, ttl_s=10)
    assert signed.grant.expires_ms == int((OWNER_AHEAD_S + 20) * 1000)
