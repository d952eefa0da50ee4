"""The control port: makes queue pairs for peers and tells them keys. One thread.

A peer's queue pairs live as long as its connection: when the peer dies, or a region it opened goes away, they are
destroyed, and nothing the peer has under way can touch this process's memory any more.
"""

import contextlib
import logging
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from daemons.core.errors import ProtocolError, TransferError, Unavailable
from daemons.core.ids import Epoch
from daemons.transfer.credentials import RDMA_CONTROL, Credential, place_of
from daemons.transfer.transports.rdma import messages
from daemons.transfer.transports.rdma.caller import (
    Caller,
    destroy_queue_pairs,
    set_keepalive,
    shut,
    take_frames,
)
from daemons.transfer.transports.rdma.device import Device
from daemons.transfer.transports.rdma.messages import (
    Answer,
    Connect,
    Disconnect,
    Done,
    Hello,
    HelloReply,
    Notify,
    OpenRegion,
    OpenRegionReply,
    Refused,
)
from daemons.transfer.transports.rdma.queue_pair import QueuePair, Retries
from daemons.transfer.transports.rdma.registration import RegistrationTable
from daemons.transfer.transports.rdma.verbs import load

log = logging.getLogger(__name__)

_MAX_CONNECTIONS = 256
_MAX_QUEUE_PAIRS = 2048
_MAX_QUEUE_PAIRS_EACH = 64
_HELLO_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Service:
    """What callers are served from. With a credential, only those who prove to be daemons get keys."""

    epoch: Epoch
    devices: Sequence[Device]
    registrations: RegistrationTable
    retries: Retries
    deliver: Callable[[int, bytes], bool]
    """Queues a notification about a region; False when there is no room."""
    credential: Credential | None = None


class ControlListener:
    """Serves until `close`. The socket becomes its own."""

    def __init__(self, service: Service, listener: socket.socket) -> None:
        self._service = service
        self._epoch = service.epoch
        self._devices = service.devices
        self._registrations = service.registrations
        self._retries = service.retries
        self._listener = listener
        self._lock = threading.Lock()
        self._callers: set[Caller] = set()
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="mc-rdma-control", daemon=True)
        self._thread.start()

    @property
    def num_queue_pairs(self) -> int:
        """Made for peers and alive."""
        return sum(len(caller.queue_pairs) for caller in list(self._callers))

    def forget_region(self, region_id: int) -> None:
        """Cut off every peer that has keys of it. On return none of their work can touch any memory here."""
        self._cut(lambda caller: region_id in caller.opened)

    def forget_peer(self, epoch: Epoch) -> None:
        """Cut off one process, stopped or not: the fence against WRITEs of a peer that was given up."""
        self._cut(lambda caller: caller.epoch == epoch)

    def cut_refused(self) -> None:
        """Cut off daemons whose keys are not let in any more; on return they touch nothing here."""
        credential = self._service.credential
        if credential is not None:
            self._cut(lambda caller: bool(caller.public) and not credential.admits(caller.public))

    def close(self) -> None:
        self._is_closing = True
        self._wake_out.send(b"\0")
        self._thread.join()
        for caller in list(self._callers):
            self._drop(caller)
        for sock in (self._listener, self._wake_in, self._wake_out):
            sock.close()
        self._selector.close()

    def _cut(self, is_meant: Callable[[Caller], bool]) -> None:
        with self._lock:
            for caller in list(self._callers):
                if is_meant(caller):
                    caller.is_cut = True
                    destroy_queue_pairs(caller)
                    shut(caller.sock)  # the port's thread sees the end of it and drops the rest

    # The port's own thread.

    def _run(self) -> None:
        while not self._is_closing:
            for key, _ in self._selector.select(timeout=1.0):
                if key.data is not None:
                    self._receive(key.data)
                elif key.fileobj is self._listener:
                    self._accept()
            self._drop_silent()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._callers) >= _MAX_CONNECTIONS and not self._drop_stranger():
            sock.close()
            return
        try:
            sock.setblocking(False)
            set_keepalive(sock)
        except OSError:  # it has left already
            sock.close()
            return
        caller = Caller(sock, time.monotonic())
        with self._lock:
            self._callers.add(caller)
        self._selector.register(sock, selectors.EVENT_READ, caller)

    def _receive(self, caller: Caller) -> None:
        """Whatever it is that a caller sends, at worst its own connection ends."""
        try:
            received = caller.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._drop(caller)
            return
        try:
            self._answer_all(caller, received)
        except (OSError, ProtocolError) as error:
            log.debug("rdma control connection ended why=%s", error)
            self._drop(caller)
        except Exception:
            log.exception("rdma control request failed; its connection ends")
            self._drop(caller)

    def _drop_stranger(self) -> bool:
        """The one that has been longest without saying who it is: those that knock keep nobody out."""
        strangers = [caller for caller in self._callers if not caller.is_admitted]
        if not strangers:
            return False
        self._drop(min(strangers, key=lambda caller: caller.since_s))
        return True

    def _answer_all(self, caller: Caller, received: bytes) -> None:
        caller.frame += received
        for payload in take_frames(caller.frame):
            reply = self._answer(caller, messages.decode_request(payload))
            # A reply that is cut off would put the caller out of step: who reads none has to leave.
            caller.sock.sendall(messages.encode(reply))

    def _drop(self, caller: Caller) -> None:
        with self._lock:
            self._callers.discard(caller)
            destroy_queue_pairs(caller)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(caller.sock)
        caller.sock.close()

    def _drop_silent(self) -> None:
        """Not those that have spoken while this thread was held up: what came is looked at before."""
        oldest = time.monotonic() - _HELLO_TIMEOUT_S
        for caller in [c for c in self._callers if not c.is_admitted and c.since_s < oldest]:
            self._receive(caller)
            if not caller.is_admitted and caller in self._callers:
                self._drop(caller)

    def _answer(self, caller: Caller, request: messages.Request) -> messages.Reply:
        if not caller.is_admitted and not isinstance(request, Hello | Answer):
            raise ProtocolError("no hello on an RDMA control connection")
        with self._lock:
            if caller.is_cut:
                raise ProtocolError("the caller was cut off")
            try:
                return self._serve(caller, request)
            except (TransferError, Unavailable) as error:
                return Refused(message=error.message)

    def _serve(self, caller: Caller, request: messages.Request) -> messages.Reply:
        match request:
            case Hello():
                return self._greet(caller, request)
            case Answer():
                return self._admit(caller, request)
            case Connect():
                return self._connect(caller, request)
            case Disconnect():
                name = (request.device_index, request.number)
                queue_pair = caller.queue_pairs.pop(name, None)
                if queue_pair is not None:
                    queue_pair.close()
                return Done()
            case OpenRegion():
                return self._open_region(caller, request)
            case Notify():
                if self._service.deliver(request.region_id, request.message):
                    return Done()
                return Refused(message="the owner's queue of notifications is full", is_full=True)
            case _:
                assert_never(request)

    def _greet(self, caller: Caller, request: Hello) -> messages.Reply:
        if request.epoch != self._epoch:
            return Refused(
                message="the descriptor is of an earlier life of this process", is_stale=True
            )
        if caller.epoch is not None:
            raise ProtocolError("a second hello: `forget_peer` goes by the first")
        caller.epoch = request.caller_epoch
        if self._service.credential is not None:
            caller.nonce = secrets.token_bytes(16)
            return messages.Challenge(nonce=caller.nonce, shown=self._service.credential.shown())
        return self._welcome(caller)

    def _admit(self, caller: Caller, request: Answer) -> messages.Reply:
        """A nonce is good for one try."""
        nonce, caller.nonce = caller.nonce, b""
        credential, place = self._service.credential, place_of(caller.sock, is_owner=True)
        public = credential.verify(RDMA_CONTROL, nonce, request.mac, place) if credential else None
        if not nonce or public is None:
            raise ProtocolError("the caller does not prove to be a daemon of the cluster")
        caller.public = public
        return self._welcome(caller)

    def _welcome(self, caller: Caller) -> messages.Reply:
        caller.is_admitted = True
        return HelloReply(devices=[device.address for device in self._devices])

    def _connect(self, caller: Caller, request: Connect) -> messages.Reply:
        if not 0 <= request.device_index < len(self._devices):
            return Refused(message=f"there is no device {request.device_index}")
        if len(caller.queue_pairs) >= _MAX_QUEUE_PAIRS_EACH:
            return Refused(message=f"more than {_MAX_QUEUE_PAIRS_EACH} queue pairs for one peer")
        if self.num_queue_pairs >= _MAX_QUEUE_PAIRS:
            return Refused(message=f"all {_MAX_QUEUE_PAIRS} queue pairs are taken")
        device = self._devices[request.device_index]
        problem = _why_unfit(request, device)
        if problem:
            return Refused(message=problem)
        verbs = load()
        try:
            queue_pair = QueuePair(device, depth=1, has_events=False)
        except verbs.PyverbsError as error:
            return Refused(message=f"{device.name} makes no queue pair: {error}")
        try:
            queue_pair.connect(
                request.device,
                request.queue_pair,
                num_reads=request.num_reads,
                retries=self._retries,
            )
        except verbs.PyverbsError as error:
            queue_pair.close()
            return Refused(message=f"{device.name} cannot reach {request.device.gid}: {error}")
        except BaseException:
            queue_pair.close()
            raise
        caller.queue_pairs[request.device_index, queue_pair.address.number] = queue_pair
        return messages.ConnectReply(queue_pair=queue_pair.address)

    def _open_region(self, caller: Caller, request: OpenRegion) -> messages.Reply:
        registration = self._registrations.get(request.region_id)
        if registration.why_not and not any(registration.mrs):
            return Refused(message=registration.why_not)
        caller.opened.add(request.region_id)
        return OpenRegionReply(
            address=registration.address,
            size_bytes=registration.size_bytes,
            chunk_bytes=registration.chunk_bytes,
            keys=registration.remote_keys(),
            is_writable=registration.is_writable,
        )


def _why_unfit(request: Connect, device: Device) -> str:
    """What is wrong with a peer's numbers."""
    if not 1 <= request.num_reads <= device.address.max_reads:
        return f"{request.num_reads} READs at once are out of range"
    return messages.problem_of_device(request.device) or messages.problem_of_queue_pair(
        request.queue_pair
    )
