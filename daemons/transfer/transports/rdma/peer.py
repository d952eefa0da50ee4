"""A process whose memory is read: its control connection, its devices and paths to them, and the keys it told.

The connection is kept: its end says that the peer died, or took away a region it had told keys of; either way its
queue pairs are gone, and this object with it.
"""

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from daemons.core.errors import Exhausted, ProtocolError, TransferError, Unavailable
from daemons.core.ids import Epoch
from daemons.protocol.segment import DataAddress
from daemons.transfer.credentials import RDMA_CONTROL, Credential, place_of
from daemons.transfer.transports.base import StaleEpoch, Unreachable, describe
from daemons.transfer.transports.rdma import messages
from daemons.transfer.transports.rdma.caller import set_keepalive
from daemons.transfer.transports.rdma.device import Device
from daemons.transfer.transports.rdma.messages import OpenRegionReply
from daemons.transfer.transports.rdma.pairing import pair_devices
from daemons.transfer.transports.rdma.queue_pair import MAX_DEPTH, QueuePair, Retries
from daemons.transfer.transports.rdma.routes import Routes
from daemons.transfer.transports.rdma.verbs import load
from daemons.transfer.transports.tcp import split_endpoint

_CONNECT_TIMEOUT_S = 2.0
_CALL_TIMEOUT_S = 5.0
_CONFIRM_TIMEOUT_S = 0.5


class PeerLost(Unavailable):
    """The control connection ended: the peer died, or cut this process off. A new connection tells which."""


@dataclass(slots=True, eq=False)
class Path:
    """From one device here to one of the peer's, and its queue pairs."""

    name: str
    device_index: int
    peer_device_index: int
    num_open: int = 0
    idle: list["Endpoint"] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Endpoint:
    """A connected queue pair, used by one transfer at a time."""

    peer: "Peer"
    path: Path
    queue_pair: QueuePair
    peer_number: int
    num_reads: int
    is_leased: bool = True
    scratch: int = 0
    """Slot of registered memory for a generation word."""


class Peer:
    """Thread safe. `close` once no endpoint of it is in use."""

    def __init__(
        self,
        address: DataAddress,
        caller_epoch: Epoch,
        devices: Sequence[Device],
        credential: Credential | None,
        timeout_s: float,
    ) -> None:
        self.name = describe(address)
        self.epoch = address.epoch
        self.is_lost = False
        self.has_ended = False
        """The peer closed the connection: it has destroyed its queue pairs before."""
        self._is_surrendered = False
        self._devices = devices
        self._lock = threading.Lock()
        self._regions: dict[int, OpenRegionReply] = {}
        self._num_unread = 0
        self._sock = _connect(address, min(timeout_s, _CONNECT_TIMEOUT_S))
        try:
            reply = self._call(messages.Hello(epoch=address.epoch, caller_epoch=caller_epoch))
            if isinstance(reply, messages.Challenge):
                reply = self._call(_answer(credential, reply, self._sock))
        except PeerLost as error:
            self._sock.close()
            raise Unreachable(error.message) from error
        except BaseException:
            self._sock.close()
            raise
        if not isinstance(reply, messages.HelloReply):
            self._sock.close()
            raise ProtocolError(f"{self.name} gave no hello on its RDMA control port")
        problem = next(filter(None, map(messages.problem_of_device, reply.devices)), "")
        if problem:
            self._sock.close()
            raise ProtocolError(f"{self.name} told of an RDMA device: {problem}")
        self._peer_devices = reply.devices
        pairs = pair_devices([device.address for device in devices], reply.devices)
        if not pairs:
            self._sock.close()
            raise Unreachable(f"no device of {self.name} has a link of the kind of those here")
        self.paths = [
            Path(f"{devices[i].name}/{devices[i].port} to {reply.devices[k].name}", i, k)
            for i, k in pairs
        ]
        self.routes = Routes(
            {path.name: devices[path.device_index].bytes_per_s for path in self.paths}
        )

    def device_name(self, path: Path) -> str:
        """Of this side."""
        return self._devices[path.device_index].name

    def is_alive(self) -> bool:
        """Must not wait: a peer that is being asked something counts as alive until that fails."""
        if self.is_lost:
            return False
        if not self._lock.acquire(blocking=False):
            return True
        try:
            self.has_ended = self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
            self.is_lost = self.has_ended
        except BlockingIOError:
            return True
        except OSError:
            self.is_lost = True
        finally:
            self._lock.release()
        return not self.is_lost

    def region(self, region_id: int) -> OpenRegionReply:
        """Where it lies and its keys, asked for once. Raises TransferError when the peer has no such region."""
        known = self._regions.get(region_id)
        if known is None:
            reply = self._call(messages.OpenRegion(region_id=region_id))
            if not isinstance(reply, OpenRegionReply):
                raise self._out_of_step(f"did not say where region {region_id} lies")
            problem = messages.problem_of_region(reply, len(self._peer_devices))
            if problem:
                raise self._out_of_step(f"was asked for region {region_id}: {problem}")
            known = self._regions[region_id] = reply
        return known

    def connect(self, path: Path, retries: Retries) -> Endpoint:
        """A new queue pair over this path. Raises TransferError when either end cannot."""
        device = self._devices[path.device_index]
        peer_device = self._peer_devices[path.peer_device_index]
        num_reads = min(device.address.max_reads, device.address.max_reads_out)
        num_reads = min(num_reads, peer_device.max_reads, peer_device.max_reads_out, MAX_DEPTH)
        verbs = load()
        try:
            queue_pair = QueuePair(device)
        except verbs.PyverbsError as error:
            raise TransferError(f"{device.name} makes no queue pair: {error}") from error
        request = messages.Connect(
            device_index=path.peer_device_index,
            device=device.address,
            queue_pair=queue_pair.address,
            num_reads=num_reads,
        )
        try:
            reply = self._call_connect(request)
            queue_pair.connect(peer_device, reply.queue_pair, num_reads=num_reads, retries=retries)
        except (verbs.PyverbsError, ValueError, OverflowError) as error:
            queue_pair.close()
            raise TransferError(f"{device.name} cannot reach {peer_device.gid}: {error}") from error
        except BaseException:
            queue_pair.close()
            raise
        return Endpoint(self, path, queue_pair, reply.queue_pair.number, num_reads)

    def disconnect(self, endpoint: Endpoint, *, confirms: bool) -> bool:
        """Have the peer destroy its end too. With `confirms` wait for it: a WRITE in the network then ends nowhere.

        False: the peer did not confirm in time, see `surrender`.
        """
        request = messages.Disconnect(
            device_index=endpoint.path.peer_device_index, number=endpoint.peer_number
        )
        try:
            if confirms:
                self._call(request, _CONFIRM_TIMEOUT_S)
            else:
                self._tell(request)
        except PeerLost:
            self._shut()  # the peer destroys its end when it sees the connection end
            return self.has_ended or not confirms
        return True

    def notify(self, region_id: int, message: bytes) -> None:
        self._call(messages.Notify(region_id=region_id, message=message))

    def surrender(self) -> "EndOfConnection":
        """For a WRITE that the peer did not confirm the end of. This object is not usable any more."""
        self.is_lost = True
        self._is_surrendered = True
        self._shut()
        return EndOfConnection(self._sock)

    def close(self) -> None:
        self.is_lost = True
        if not self._is_surrendered:
            self._sock.close()

    def _call(
        self, request: messages.Request, timeout_s: float = _CALL_TIMEOUT_S
    ) -> messages.Reply:
        with self._lock:
            if self.is_lost:
                raise PeerLost(f"{self.name} is gone")
            try:
                self._sock.settimeout(timeout_s)
                self._sock.sendall(messages.encode(request))
                while self._num_unread:
                    messages.receive_reply(self._sock)
                    self._num_unread -= 1
                reply = messages.receive_reply(self._sock)
            except OSError as error:
                self.is_lost = True
                self.has_ended = isinstance(error, ConnectionError)
                raise PeerLost(f"{self.name} is gone: {error}") from error
            except ProtocolError as error:
                raise self._out_of_step(f"sent what is no reply: {error.message}") from error
            finally:
                self._sock.settimeout(0)  # with a timeout, Python would wait before it looks
        if isinstance(reply, messages.Refused):
            message = f"{self.name}: {reply.message}"
            if reply.is_full:
                raise Exhausted(message)
            raise (StaleEpoch if reply.is_stale else TransferError)(message)
        return reply

    def _call_connect(self, request: messages.Connect) -> messages.ConnectReply:
        reply = self._call(request)
        if not isinstance(reply, messages.ConnectReply):
            raise self._out_of_step("did not connect a queue pair")
        problem = messages.problem_of_queue_pair(reply.queue_pair)
        if problem:
            raise self._out_of_step(f"was asked for a queue pair: {problem}")
        return reply

    def _out_of_step(self, what: str) -> ProtocolError:
        """To be raised: nothing it says on this connection can be trusted to answer what was asked."""
        self.is_lost = True
        self._shut()
        return ProtocolError(f"{self.name} {what}")

    def _tell(self, request: messages.Request) -> None:
        """Ask without waiting: the reply is read, and dropped, before the next one."""
        with self._lock:
            if self.is_lost:
                raise PeerLost(f"{self.name} is gone")
            try:
                self._sock.sendall(messages.encode(request))
            except OSError as error:
                self.is_lost = True
                raise PeerLost(f"{self.name} is gone: {error}") from error
            self._num_unread += 1

    def _shut(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return


class EndOfConnection:
    """The fence of a WRITE that was given up: once the peer has closed its side, its queue pairs are gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._has_ended = False

    def wait_closed(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            while not self._has_ended:
                try:
                    self._sock.settimeout(max(deadline_s - time.monotonic(), 0.001))
                    self._has_ended = self._sock.recv(4096) == b""
                except TimeoutError:
                    return False
                except ConnectionResetError:
                    self._has_ended = True
                except OSError:
                    return False  # a network that went silent proves nothing
                if self._has_ended:
                    self._sock.close()
        return True


def _answer(
    credential: Credential | None, asked: messages.Challenge, sock: socket.socket
) -> messages.Answer:
    """Without credentials one that is wrong: the peer then says no in its own way."""
    if credential is None:
        return messages.Answer(mac=b"")
    place = place_of(sock, is_owner=False)
    try:
        proof = credential.prove(RDMA_CONTROL, asked.nonce, asked.shown, place)
    except ProtocolError as error:
        raise Unreachable(error.message) from error
    return messages.Answer(mac=proof)


def _connect(address: DataAddress, timeout_s: float) -> socket.socket:
    host, port = split_endpoint(address.rdma)
    try:
        sock = socket.create_connection((host, port), timeout=timeout_s)
    except (OSError, ValueError) as error:  # ValueError: a host that can be no address
        raise Unreachable(f"cannot connect to {describe(address)} for RDMA: {error}") from error
    set_keepalive(sock)
    sock.setblocking(False)
    return sock
