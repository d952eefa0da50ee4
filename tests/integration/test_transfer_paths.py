"""A peer with several TCP addresses: transfers are spread over them and outlive the loss of one.

The links are processes' own forwarders on loopback here, which can fall silent; tests/system has real ones.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from daemons.core.errors import ConfigError, TransferError, Unavailable
from daemons.protocol.segment import RegionRef
from daemons.transfer import Read, ReadBatch, TransferEngine, Write, contiguous
from daemons.transfer.path_record import ASSUMED_BYTES_PER_S
from daemons.transfer.transports.paths import STALL_S
from daemons.transfer.transports.tcp import TcpTransport

MIB = 1 << 20
SIZE = 24 * MIB
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


class Link:
    """Forwards to an address until it is silent: then it takes nothing and says nothing, like a pulled cable."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._is_closed = False
        self.forwarded_bytes = 0
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def silence(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._is_closed = True
        self._open.set()
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._open.wait()
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._forward, args=(source, sink)))
                self._threads[-1].start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(64 << 10):
                self._open.wait()
                self.forwarded_bytes += len(data)
                sink.sendall(data)
            self._open.wait()
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


@pytest.fixture
def make_engine() -> Iterator[Callable[..., TransferEngine]]:
    engines: list[TransferEngine] = []

    def make(**settings: object) -> TransferEngine:
        engines.append(TransferEngine(transports=("tcp",), **settings))  # type: ignore[arg-type]
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def through_links() -> Iterator[Callable[[RegionRef], tuple[RegionRef, list[Link]]]]:
    """The region as a peer sees it that reaches each address over a link of its own."""
    links: list[Link] = []

    def wrap(region: RegionRef) -> tuple[RegionRef, list[Link]]:
        address = region.address
        links.extend(Link(endpoint) for endpoint in (address.tcp, *address.tcp_more))
        told = msgspec.structs.replace(
            address, tcp=links[0].endpoint, tcp_more=[link.endpoint for link in links[1:]]
        )
        return msgspec.structs.replace(region, address=told), links

    yield wrap
    for link in links:
        link.close()


def state_of(user: TransferEngine, region: RegionRef, link: Link) -> str:
    return {view.name: view.state for view in user.paths(region.address)}[link.endpoint]


def until_all_carry(user: TransferEngine, region: RegionRef, move: Callable[[], None]) -> int:
    """Move it until every path had a part of it, as a busy machine may give all to one; how often that took."""
    give_up = time.monotonic() + 60
    num_moves = 0
    while time.monotonic() < give_up:
        move()
        num_moves += 1
        if all(view.carried_bytes for view in user.paths(region.address)):
            return num_moves
    raise AssertionError("each address carries its share")


def pattern(seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)


def test_it_listens_on_exactly_the_addresses_that_it_was_told(
    make_engine: Callable[..., TransferEngine],
) -> None:
    address = make_engine(bind_host=HOSTS[0], more_hosts=HOSTS[1:]).address
    told = [endpoint.rpartition(":") for endpoint in (address.tcp, *address.tcp_more)]
    assert [host for host, _, _ in told] == list(HOSTS)
    for host, _, port in told:
        socket.create_connection((host, int(port))).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.4", int(port)))
    with pytest.raises(ConfigError, match="twice"):
        make_engine(bind_host=HOSTS[0], more_hosts=[HOSTS[0]])


def test_a_path_is_worth_its_link_until_it_was_measured(
    make_engine: Callable[..., TransferEngine],
) -> None:
    region = make_engine(more_hosts=HOSTS[1:2]).register(pattern(1))
    first, second = region.address.tcp, region.address.tcp_more[0]
    transport = TcpTransport(link_speed={first: 25e9, second: None}.get)
    transport.read(ReadBatch(region, [Read.into(contiguous(0, 64), np.zeros(64, np.uint8))]))
    rates = {view.name: view.bytes_per_s for view in transport.views(region.address)}
    transport.close()
    assert rates == {first: 25e9, second: ASSUMED_BYTES_PER_S}


def test_reads_and_writes_are_spread_and_every_byte_is_right(
    make_engine: Callable[..., TransferEngine],
) -> None:
    owner, user = make_engine(more_hosts=HOSTS[1:]), make_engine()
    memory, local = pattern(1), np.zeros(SIZE, np.uint8)
    region = owner.register(memory, "read-write")
    reads = [Read.into(contiguous(0, SIZE), local)]
    num_moves = until_all_carry(user, region, lambda: user.read(region, reads, timeout_s=60))
    assert np.array_equal(local, memory)
    assert sum(view.carried_bytes for view in user.paths(region.address)) == num_moves * SIZE
    local[:] = pattern(2)
    user.write(region, [Write.at(0, local)], notify=b"here")
    assert np.array_equal(memory, local)
    assert [note.message for note in owner.notifications(20.0)] == [b"here"]
    user.read(region, [Read.into(contiguous(5, 100), local, 7)])
    assert np.array_equal(local[7:107], memory[5:105])


def test_a_read_goes_on_over_the_other_address_when_one_falls_silent(
    make_engine: Callable[..., TransferEngine],
    through_links: Callable[[RegionRef], tuple[RegionRef, list[Link]]],
) -> None:
    owner, user = make_engine(more_hosts=HOSTS[1:2]), make_engine()
    memory, local = pattern(3), np.zeros(SIZE, np.uint8)
    region, links = through_links(owner.register(memory))
    reads = [Read.into(contiguous(0, SIZE), local)]
    until_all_carry(user, region, lambda: user.read(region, reads, timeout_s=60))
    silent = max(links, key=lambda link: link.forwarded_bytes)  # the quicker one is used again
    silent.silence()
    give_up = time.monotonic() + 120
    while state_of(user, region, silent) == "up" and time.monotonic() < give_up:
        local[:] = 0
        user.read(region, [Read.into(contiguous(0, SIZE), local)], timeout_s=60)
        assert np.array_equal(local, memory)
    assert state_of(user, region, silent) != "up"
    silent.mend()
    before = silent.forwarded_bytes
    while silent.forwarded_bytes < before + MIB:  # probed, and then used
        user.read(region, [Read.into(contiguous(0, SIZE), local)], timeout_s=60)


def test_a_write_goes_on_and_what_the_silent_address_held_never_lands(
    make_engine: Callable[..., TransferEngine],
    through_links: Callable[[RegionRef], tuple[RegionRef, list[Link]]],
) -> None:
    owner, user = make_engine(more_hosts=HOSTS[1:2]), make_engine()
    memory, local = np.zeros(SIZE, np.uint8), pattern(4)
    region, links = through_links(owner.register(memory, "read-write"))
    writes = [Write.at(0, local)]
    until_all_carry(user, region, lambda: user.write(region, writes, timeout_s=60))
    memory[:] = 0
    links[0].silence()
    user.write(region, writes, timeout_s=60)
    assert np.array_equal(memory, local)
    memory[:] = 0  # it is over: the range is the owner's again
    links[0].mend()
    threading.Event().wait(0.3)
    assert not memory.any(), "bytes that lay in the lost path landed after the end"


def test_a_peer_that_is_silent_on_all_addresses_is_reported(
    make_engine: Callable[..., TransferEngine],
    through_links: Callable[[RegionRef], tuple[RegionRef, list[Link]]],
) -> None:
    owner, user = make_engine(more_hosts=HOSTS[1:2]), make_engine()
    local = np.zeros(MIB, np.uint8)
    region, links = through_links(owner.register(pattern(5)))
    user.read(region, [Read.into(contiguous(0, MIB), local)])
    for link in links:
        link.silence()
    with pytest.raises(Unavailable):
        user.read(region, [Read.into(contiguous(0, MIB), local)], timeout_s=10 * STALL_S)
    with pytest.raises(Unavailable):
        user.read(region, [Read.into(contiguous(0, MIB), local)], timeout_s=0.2)


def test_what_the_owner_refuses_is_no_fault_of_the_path(
    make_engine: Callable[..., TransferEngine],
) -> None:
    owner, user = make_engine(more_hosts=HOSTS[1:2]), make_engine()
    region = owner.register(pattern(6))
    local = np.zeros(SIZE, np.uint8)
    with pytest.raises(TransferError, match="READ only"):
        user.write(region, [Write.at(0, local)])
    assert {view.state for view in user.paths(region.address)} == {"up"}
    seen: list[int] = []

    reads = [Read.into(contiguous(i * MIB, MIB), local, i * MIB) for i in range(4)]
    user.run(ReadBatch(region, reads, on_read=seen.append))
    assert seen == [0, 1, 2, 3]
