"""RDMA without a device: GIDs, pairs of devices, eviction, control messages, and why it is unavailable."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemons.core.errors import ProtocolError
from daemons.transfer.transports.rdma import messages, verbs, why_unavailable
from daemons.transfer.transports.rdma.gid import Gid, choose_gid, read_gids
from daemons.transfer.transports.rdma.messages import DeviceAddress, QueuePairAddress
from daemons.transfer.transports.rdma.pairing import pair_devices
from daemons.transfer.transports.rdma.sieve import Sieve

V1, V2 = "IB/RoCE v1", "RoCE v2"
LINK = "fe80:0000:0000:0000:0e42:a1ff:fe00:0001"
GLOBAL = "2001:0db8:0000:0000:0000:0000:0000:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


def device(gid: str, *, is_ethernet: bool = True) -> DeviceAddress:
    return DeviceAddress(
        name="d", gid=gid, lid=0, mtu=5, is_ethernet=is_ethernet, max_reads=16, max_reads_out=16
    )


def rail(number: int, host: int) -> DeviceAddress:
    return device(f"0000:0000:0000:0000:0000:ffff:0a4d:{number:02x}{host:02x}")


class TestGid:
    def test_ethernet_prefers_version_2_with_an_ipv4_address(self) -> None:
        table = [
            Gid(0, LINK, V1),
            Gid(1, LINK, V2),
            Gid(2, IPV4, V1),
            Gid(3, IPV4, V2),
            Gid(4, GLOBAL, V2),
        ]
        chosen = choose_gid(table, is_ethernet=True)
        assert chosen == Gid(3, IPV4, V2)
        assert choose_gid(table[:2] + table[4:], is_ethernet=True) == Gid(4, GLOBAL, V2)
        assert choose_gid(table[:2], is_ethernet=True) == Gid(1, LINK, V2)

    def test_version_1_and_empty_entries_are_no_gid_for_ethernet(self) -> None:
        assert choose_gid([Gid(0, LINK, V1), Gid(1, ZERO, V2)], is_ethernet=True) is None

    def test_infiniband_takes_the_first(self) -> None:
        table = [Gid(0, ZERO, V1), Gid(1, LINK, V1)]
        assert choose_gid(table, is_ethernet=False) == Gid(1, LINK, V1)

    def test_table_is_read_from_sysfs_and_gaps_are_left_out(self, tmp_path: Path) -> None:
        port = tmp_path / "mlx5_0" / "ports" / "1"
        (port / "gids").mkdir(parents=True)
        (port / "gid_attrs" / "types").mkdir(parents=True)
        for number, value in {0: LINK, 10: IPV4, 2: ZERO}.items():
            (port / "gids" / str(number)).write_text(value + "\n")
        for number in (0, 10):
            (port / "gid_attrs" / "types" / str(number)).write_text(V2 + "\n")
        assert read_gids("mlx5_0", 1, tmp_path) == [Gid(0, LINK, V2), Gid(10, IPV4, V2)]
        assert read_gids("mlx5_1", 1, tmp_path) == []


class TestPairs:
    def test_devices_of_a_rail_meet(self) -> None:
        mine = [rail(number, 1) for number in range(8)]
        theirs = [rail(number, 2) for number in reversed(range(8))]
        assert pair_devices(mine, theirs) == [(i, 7 - i) for i in range(8)]

    def test_one_subnet_is_spread_evenly(self) -> None:
        mine = [device(LINK, is_ethernet=False)] * 4
        theirs = [device(LINK, is_ethernet=False)] * 2
        assert pair_devices(mine, theirs) == [(0, 0), (1, 1), (2, 0), (3, 1)]

    def test_kinds_of_links_do_not_mix(self) -> None:
        assert pair_devices([device(IPV4)], [device(LINK, is_ethernet=False)]) == []


class SieveMachine(RuleBasedStateMachine):
    """Against a plain list: nothing is lost, nothing comes out twice, held members stay."""

    def __init__(self) -> None:
        super().__init__()
        self.sieve: Sieve[object] = Sieve()
        self.members: list[object] = []
        self.held: list[object] = []

    @rule()
    def add(self) -> None:
        member = object()
        self.sieve.add(member)
        self.members.append(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        self.sieve.visit(data.draw(st.sampled_from(self.members)))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        self.held.append(data.draw(st.sampled_from(self.members)))

    @rule()
    def let_go(self) -> None:
        self.held.clear()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.sieve.remove(member)
        self.members.remove(member)
        self.held = [other for other in self.held if other is not member]

    @rule()
    def evict(self) -> None:
        victim = self.sieve.evict(lambda member: member not in self.held)
        if victim is None:
            assert all(member in self.held for member in self.members)
        else:
            assert victim in self.members
            assert victim not in self.held
            self.members.remove(victim)

    @invariant()
    def has_all(self) -> None:
        assert len(self.sieve) == len(self.members)


TestSieveMachine = SieveMachine.TestCase


def test_sieve_evicts_what_was_not_used() -> None:
    sieve: Sieve[str] = Sieve()
    for name in ("a", "b", "c", "d"):
        sieve.add(name)
    sieve.visit("a")
    sieve.visit("c")
    assert [sieve.evict(lambda _: True) for _ in range(4)] == ["b", "d", "a", "c"]


class TestMessages:
    REQUESTS = (
        messages.Hello(epoch=1, caller_epoch=2),
        messages.Answer(mac=b"x"),
        messages.Connect(
            device_index=0,
            device=device(IPV4),
            queue_pair=QueuePairAddress(number=17, sequence=3),
            num_reads=16,
        ),
        messages.Disconnect(device_index=1, number=17),
        messages.OpenRegion(region_id=4),
        messages.Notify(region_id=4, message=b"done"),
    )

    @pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
    def test_requests_come_back_as_they_were(self, request_: messages.Request) -> None:
        frame = messages.encode(request_)
        assert messages.payload_length(frame) == len(frame) - messages.HEADER.size
        assert messages.decode_request(frame[messages.HEADER.size :]) == request_

    @given(st.binary(max_size=200))
    def test_foreign_bytes_are_a_protocol_error(self, payload: bytes) -> None:
        try:
            messages.decode_request(payload)
        except ProtocolError:
            pass
        else:
            pytest.fail(f"{payload!r} was taken for a request")

    @given(st.binary(min_size=8, max_size=8).filter(lambda b: not b.startswith(messages.MAGIC)))
    def test_foreign_headers_are_a_protocol_error(self, header: bytes) -> None:
        with pytest.raises(ProtocolError):
            messages.payload_length(header)

    def test_huge_frames_are_refused_before_they_are_received(self) -> None:
        header = messages.HEADER.pack(messages.MAGIC, messages.MAX_PAYLOAD_BYTES + 1)
        with pytest.raises(ProtocolError):
            messages.payload_length(header)


class TestWhyUnavailable:
    @pytest.fixture(autouse=True)
    def _anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        verbs.load.cache_clear()
        for name in [name for name in sys.modules if name.split(".")[0] == "pyverbs"]:
            monkeypatch.delitem(sys.modules, name)

    def test_missing_pyverbs_says_what_provides_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyverbs", None)
        why = why_unavailable()
        assert why is not None
        assert "make rdma" in why

    @pytest.mark.parametrize(
        ("error", "hint"),
        [
            ("libibverbs.so.1: cannot open shared object file", "apt install libibverbs1"),
            ("libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found", "another rdma-core"),
            ("undefined symbol: x", "cannot be imported"),
        ],
    )
    def test_each_way_to_fail_has_its_next_step(
        self, error: str, hint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: str) -> None:
            raise ImportError(error)

        monkeypatch.setattr(verbs.importlib, "import_module", fail)
        why = why_unavailable()
        assert why is not None
        assert hint in why
        assert error in why
