import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.protocol.segment import Grant, Strided
from daemons.transfer import capability
from daemons.transfer.capability import (
    MAX_RANGES,
    BadCapability,
    CapabilityKey,
    Operation,
    encode_grant,
)
from daemons.transfer.strided import contiguous


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


ROWS = Strided(offset=100, row_bytes=10, num_rows=4, stride_bytes=50)


def accepts(
    key: CapabilityKey,
    grant: Grant,
    ranges: list[Strided],
    region_id: int = 1,
    operation: Operation = "read",
) -> bool:
    try:
        key.check(encode_grant(grant), region_id, operation, ranges, None)
    except BadCapability:
        return False
    return True


def test_it_opens_its_ranges_operation_region_and_time_only() -> None:
    clock = Clock()
    key = CapabilityKey(7, now_s=clock)
    grant = key.grant(1, [contiguous(10, 20), ROWS], "read", 5.0)
    assert accepts(key, grant, [contiguous(10, 20)])
    assert accepts(key, grant, [contiguous(15, 3), ROWS])
    assert not accepts(key, grant, [contiguous(9, 20)])
    assert not accepts(key, grant, [contiguous(11, 20)])
    assert not accepts(key, grant, [contiguous(10, 20), contiguous(40, 1)])
    assert not accepts(key, grant, [contiguous(10, 20)], region_id=2)
    assert not accepts(key, grant, [contiguous(10, 20)], operation="write")
    assert not accepts(CapabilityKey(7, now_s=clock), grant, [contiguous(10, 20)])
    clock.now_s = 104.9
    assert accepts(key, grant, [contiguous(10, 20)])
    clock.now_s = 105.0
    assert not accepts(key, grant, [contiguous(10, 20)])


def test_strided_grants_open_parts_of_their_rows() -> None:
    key = CapabilityKey(7)
    grant = key.grant(1, [ROWS], "write", 60.0)
    ok = [
        Strided(offset=152, row_bytes=8, num_rows=3, stride_bytes=50),
        contiguous(250, 10),
    ]
    bad = [
        Strided(offset=152, row_bytes=9, num_rows=3, stride_bytes=50),
        Strided(offset=150, row_bytes=10, num_rows=4, stride_bytes=50),
        Strided(offset=100, row_bytes=10, num_rows=2, stride_bytes=51),
        contiguous(110, 1),
        contiguous(50, 10),
    ]
    assert all(accepts(key, grant, [r], operation="write") for r in ok)
    assert not any(accepts(key, grant, [r], operation="write") for r in bad)


def test_hundreds_of_ranges_are_found_without_looking_at_each_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, looks = CapabilityKey(7), Counter[bool]()
    covers = capability._covers

    def counted(granted: Strided, wanted: Strided) -> bool:
        found = covers(granted, wanted)
        looks[found] += 1
        return found

    monkeypatch.setattr(capability, "_covers", counted)
    ranges = [contiguous(100 * number, 50) for number in range(MAX_RANGES)]
    random.Random(1).shuffle(ranges)
    grant = key.grant(1, ranges, "read", 60.0)
    assert accepts(key, grant, [contiguous(100 * number + 49, 1) for number in range(MAX_RANGES)])
    assert looks == {True: MAX_RANGES}


def test_a_generation_word_must_be_granted_too() -> None:
    key = CapabilityKey(7)
    grant = key.grant(1, [contiguous(0, 4)], "read", 60.0, generation=(2, 9))
    key.check(encode_grant(grant), 1, "read", [contiguous(0, 4)], (2, 9))
    with pytest.raises(BadCapability, match="generation"):
        key.check(encode_grant(grant), 1, "read", [contiguous(0, 4)], (2, 8))


@given(st.data())
def test_no_change_of_a_grant_verifies(data: st.DataObject) -> None:
    key = CapabilityKey(7)
    grant = key.grant(1, [contiguous(0, 4)], "read", 60.0)
    changed = data.draw(
        st.sampled_from(
            [
                msgspec.structs.replace(grant, ranges=(contiguous(0, 5),)),
                msgspec.structs.replace(grant, operation="write"),
                msgspec.structs.replace(grant, expires_ms=grant.expires_ms + 1),
                msgspec.structs.replace(grant, generation=(1, 1)),
                msgspec.structs.replace(grant, mac=b""),
                msgspec.structs.replace(grant, mac=bytes(16)),
            ]
        )
    )
    for operation in ("read", "write"):
        assert not accepts(key, changed, [contiguous(0, 4)], operation=operation)


@given(st.binary(max_size=80))
def test_bytes_are_no_capability(packed: bytes) -> None:
    with pytest.raises(BadCapability):
        CapabilityKey(7).check(packed, 1, "read", [contiguous(0, 4)], None)


def test_those_who_know_the_secret_sign_alike_for_each_epoch() -> None:
    clock = Clock()
    owner = CapabilityKey(7, b"cluster", now_s=clock)
    grant = CapabilityKey(7, b"cluster", now_s=clock).grant(1, [ROWS], "read", 5.0)
    assert accepts(owner, grant, [ROWS])
    for other in (CapabilityKey(8, b"cluster"), CapabilityKey(7, b"another"), CapabilityKey(7)):
        assert not accepts(owner, other.grant(1, [ROWS], "read", 5.0), [ROWS])
