"""Whatever a peer sends to the RDMA control port, at worst its own connection ends. No device is needed for that."""

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from daemons.core.errors import ProtocolError
from daemons.core.ids import Epoch
from daemons.protocol.segment import DataAddress
from daemons.transfer.memory import host_id
from daemons.transfer.transports.rdma import listener, messages
from daemons.transfer.transports.rdma.listener import ControlListener, Service
from daemons.transfer.transports.rdma.messages import (
    Answer,
    Connect,
    DeviceAddress,
    Disconnect,
    Done,
    Hello,
    HelloReply,
    Notify,
    OpenRegion,
    OpenRegionReply,
    QueuePairAddress,
    Refused,
)
from daemons.transfer.transports.rdma.peer import Peer, PeerLost
from daemons.transfer.transports.rdma.queue_pair import Retries
from daemons.transfer.transports.rdma.registration import RegistrationTable

EPOCH = Epoch(5)
HELLO = Hello(epoch=EPOCH, caller_epoch=9)
DEVICE = DeviceAddress(
    name="d", gid="fe80::1", lid=0, mtu=3, is_ethernet=True, max_reads=16, max_reads_out=16
)
PAIR = QueuePairAddress(number=17, sequence=1)
CONNECT = Connect(device_index=0, device=DEVICE, queue_pair=PAIR, num_reads=1)
BUG = 13
"""Messages about this region meet a bug of ours."""

pytestmark = pytest.mark.timeout(30)


def deliver(region_id: int, _: bytes) -> bool:
    if region_id == BUG:
        raise RuntimeError("what nobody thought of")
    return True


class Caller:
    def __init__(self, at: tuple[str, int]) -> None:
        self.sock = socket.create_connection(at, timeout=20)

    def ask(self, request: messages.Request) -> messages.Reply:
        self.sock.sendall(messages.encode(request))
        return messages.receive_reply(self.sock)

    def is_cut_off_after(self, sent: bytes) -> bool:
        try:
            self.sock.sendall(sent)
            while self.sock.recv(65536):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def floods(self, sent: bytes, num_times: int) -> bool:
        """Whether the other side puts an end to it; no reply is read."""
        try:
            for _ in range(num_times):
                self.sock.sendall(sent)
        except ConnectionError:
            return True
        return False

    def serves(self) -> bool:
        return self.ask(Notify(region_id=1, message=b"x")) == Done()


class Port:
    def __init__(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.address = listening.getsockname()
        service = Service(EPOCH, [], RegistrationTable([]), Retries(), deliver)
        self.listener = ControlListener(service, listening)
        self._callers: list[Caller] = []

    def stranger(self) -> Caller:
        self._callers.append(Caller(self.address))
        return self._callers[-1]

    def caller(self) -> Caller:
        """Has said hello."""
        made = self.stranger()
        assert isinstance(made.ask(HELLO), HelloReply)
        return made

    def close(self) -> None:
        for caller in self._callers:
            caller.sock.close()
        self.listener.close()


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        messages.HEADER.pack(messages.MAGIC, 0),
        messages.HEADER.pack(messages.MAGIC, messages.MAX_PAYLOAD_BYTES + 1),
        messages.HEADER.pack(messages.MAGIC, 3) + b"\xc1\xc1\xc1",
        messages.HEADER.pack(messages.MAGIC, 2) + msgspec.msgpack.encode([1]),
        messages.encode(Answer(mac=b"x")),
        messages.encode(HELLO),
        messages.encode(Notify(region_id=BUG, message=b"")),
        messages.encode(Notify(region_id=1, message=b"")) + b"nonsense",
    ],
    ids=["http", "empty", "huge", "no msgpack", "no request", "answer", "hello", "bug", "then"],
)
def test_bad_message_ends_its_connection_and_no_other(port: Port, sent: bytes) -> None:
    good, bad = port.caller(), port.caller()
    assert bad.is_cut_off_after(sent)
    assert good.serves()
    assert port.caller().serves()


def test_those_that_say_nothing_keep_nobody_out(port: Port) -> None:
    good = port.caller()
    for _ in range(300):
        port.stranger()
    assert port.caller().serves()
    assert good.serves()


def test_those_that_spoke_while_the_port_was_held_up_are_heard(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_HELLO_TIMEOUT_S", -1.0)
    with port.listener._lock:  # nobody is let in meanwhile
        late = port.stranger()
        late.sock.sendall(messages.encode(HELLO))
    assert isinstance(messages.receive_reply(late.sock), HelloReply)
    assert port.stranger().is_cut_off_after(b"")


def test_request_before_the_hello_ends_the_connection(port: Port) -> None:
    assert port.stranger().is_cut_off_after(messages.encode(OpenRegion(region_id=1)))
    assert port.caller().serves()


def test_request_in_pieces_and_several_in_one_are_answered_in_order(port: Port) -> None:
    caller = port.caller()
    sent = messages.encode(Notify(region_id=1, message=b"x")) * 3
    for start in range(0, len(sent), 5):
        caller.sock.sendall(sent[start : start + 5])
    assert [messages.receive_reply(caller.sock) for _ in range(3)] == [Done()] * 3


def test_what_cannot_be_done_is_refused_and_the_connection_goes_on(port: Port) -> None:
    caller = port.caller()
    for request in (OpenRegion(region_id=99), CONNECT, OpenRegion(region_id=-1)):
        assert isinstance(caller.ask(request), Refused)
    assert caller.ask(Disconnect(device_index=3, number=-7)) == Done()
    assert caller.serves()


def test_caller_that_reads_no_replies_leaves_and_holds_up_nobody(port: Port) -> None:
    """Half a reply is never followed by another."""
    good, deaf = port.caller(), port.caller()
    assert deaf.floods(messages.encode(OpenRegion(region_id=99)) * 1000, 200)
    assert good.serves()
    got = b""
    try:
        while part := deaf.sock.recv(1 << 20):
            got += part
    except ConnectionError:
        pass
    reply = messages.encode(messages.Refused(message="region 99 is not registered"))
    assert got.startswith(reply)


def test_who_was_cut_off_is_served_no_more(port: Port) -> None:
    caller = port.caller()
    port.listener.forget_peer(Epoch(9))
    assert caller.is_cut_off_after(messages.encode(Notify(region_id=1, message=b"x")))
    other = port.stranger()
    assert isinstance(other.ask(Hello(epoch=EPOCH, caller_epoch=10)), HelloReply)
    port.listener.forget_peer(Epoch(9))
    assert other.serves()


class Liar:
    """A peer that answers the hello well and then says what it is told to."""

    def __init__(self, lie: bytes, device: DeviceAddress = DEVICE) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.address = DataAddress(
            host_id=host_id(), unix_path="", tcp="", epoch=EPOCH, rdma=f"{host}:{port}"
        )
        self._said = [messages.encode(HelloReply(devices=[device])), lie]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._listener.accept()[0] as sock:
            for said in self._said:
                sock.recv(65536)
                sock.sendall(said)
            while sock.recv(65536):
                pass

    def close(self) -> None:
        self._listener.close()
        self._thread.join(5)
        assert not self._thread.is_alive()


class Ours:
    """As much of a device as a hello needs."""

    name, port, address, bytes_per_s = "d", 1, DEVICE, None


@pytest.mark.parametrize(
    "lie",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        messages.HEADER.pack(messages.MAGIC, 3) + b"\xc1\xc1\xc1",
        messages.encode(Done()),
        *[
            messages.encode(
                msgspec.structs.replace(
                    OpenRegionReply(address=0, size_bytes=10, chunk_bytes=10, keys=[[1]]), **wrong
                )
            )
            for wrong in (
                {"chunk_bytes": 0},
                {"size_bytes": -1},
                {"address": 1 << 63, "size_bytes": 1 << 63},
                {"keys": []},
                {"keys": [[1, 2]]},
                {"keys": [[1 << 32]]},
            )
        ],
    ],
)
def test_peer_that_answers_nonsense_is_asked_nothing_more(lie: bytes) -> None:
    liar = Liar(lie)
    peer = Peer(liar.address, Epoch(9), [Ours()], None, 5.0)  # type: ignore[list-item]
    with pytest.raises(ProtocolError):
        peer.region(1)
    assert not peer.is_alive()
    with pytest.raises(PeerLost):
        peer.region(1)
    peer.close()
    liar.close()


@pytest.mark.parametrize(
    "changes", [{"gid": "x"}, {"gid": "fe80::1%eth0"}, {"mtu": 9}, {"lid": -1}, {"max_reads": 0}]
)
def test_device_that_cannot_be_is_refused_at_the_hello(changes: dict[str, object]) -> None:
    liar = Liar(b"", msgspec.structs.replace(DEVICE, **changes))
    with pytest.raises(ProtocolError, match="RDMA device"):
        Peer(liar.address, Epoch(9), [Ours()], None, 5.0)  # type: ignore[list-item]
    liar.close()
