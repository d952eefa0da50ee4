"""One reliable queue pair with its own completion queue: connect, post one-sided work, poll, destroy.

Destroying it is the fence: whatever was posted on it can neither read nor write memory afterwards. Used by one thread
at a time.
"""

import ctypes
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from daemons.core.errors import TransferError
from daemons.transfer.transports.rdma.device import Device
from daemons.transfer.transports.rdma.messages import DeviceAddress, QueuePairAddress
from daemons.transfer.transports.rdma.verbs import load

MAX_DEPTH = 64
"""Work requests under way at once."""

_MIN_RNR_TIMER = 12
_HOP_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Retries:
    """How long a silent peer is waited for: 4.096 us * 2**timeout for each of count + 1 tries."""

    timeout: int = 14
    count: int = 6
    """At most 6: Soft-RoCE takes 7 as for ever, and would never report a dead peer."""


class Opcode(Enum):
    READ = "IBV_WR_RDMA_READ"
    WRITE = "IBV_WR_RDMA_WRITE"


Piece = tuple[int, int, int]
"""(address, length, key) of local memory: a bare tuple, as one is made for every work request."""


class QueuePair:
    """Close it exactly when nobody posts or polls any more; closing twice is harmless."""

    def __init__(self, device: Device, *, depth: int = MAX_DEPTH, has_events: bool = True) -> None:
        verbs = load()
        self.device = device
        self.depth = depth
        # Up to pyverbs 58 the channel keeps its descriptor to itself, and its own call would hold the GIL.
        self._channel: Any = None
        if has_events and hasattr(verbs.CompChannel, "fd"):
            self._channel = verbs.CompChannel(device.context)
        self._completions = verbs.CQ(device.context, depth + 1, None, self._channel)
        try:
            capacity = verbs.QPCap(
                max_send_wr=depth,
                max_recv_wr=1,
                max_send_sge=device.max_send_pieces,
                max_recv_sge=1,
            )
            wanted = verbs.QPInitAttr(
                qp_type=verbs.IBV_QPT_RC,
                scq=self._completions,
                rcq=self._completions,
                cap=capacity,
                sq_sig_all=0,
            )
            self._queue_pair = verbs.QP(device.domain, wanted)
        except verbs.PyverbsError:
            self._close_completions()
            raise
        self.address = QueuePairAddress(
            number=int(self._queue_pair.qp_num), sequence=secrets.randbits(24)
        )
        self._is_open = True
        self._is_armed = False
        self._request = _ReusedRequest()
        self._opcodes = {opcode: getattr(verbs, opcode.value) for opcode in Opcode}
        self._signaled = verbs.IBV_SEND_SIGNALED

    def connect(
        self,
        peer: DeviceAddress,
        peer_queue_pair: QueuePairAddress,
        *,
        num_reads: int,
        retries: Retries,
    ) -> None:
        """Ready to serve and to post; `num_reads` READs at once in either direction, as both ends agreed."""
        verbs = load()
        device = self.device
        attributes = verbs.QPAttr(port_num=device.port)
        attributes.qp_access_flags = (
            verbs.IBV_ACCESS_LOCAL_WRITE
            | verbs.IBV_ACCESS_REMOTE_READ
            | verbs.IBV_ACCESS_REMOTE_WRITE
        )
        attributes.pkey_index = 0
        self._queue_pair.to_init(attributes)
        attributes.path_mtu = min(peer.mtu, device.address.mtu)
        attributes.dest_qp_num = peer_queue_pair.number
        attributes.rq_psn = peer_queue_pair.sequence
        attributes.max_dest_rd_atomic = num_reads
        attributes.min_rnr_timer = _MIN_RNR_TIMER
        route = verbs.GlobalRoute(
            dgid=verbs.GID(peer.gid), sgid_index=device.gid_index, hop_limit=_HOP_LIMIT
        )
        attributes.ah_attr = verbs.AHAttr(
            gr=route, is_global=1, port_num=device.port, dlid=peer.lid
        )
        self._queue_pair.to_rtr(attributes)
        attributes.sq_psn = self.address.sequence
        attributes.timeout = retries.timeout
        attributes.retry_cnt = retries.count
        attributes.rnr_retry = retries.count
        attributes.max_rd_atomic = num_reads
        self._queue_pair.to_rts(attributes)

    def post(
        self, opcode: Opcode, number: int, remote: tuple[int, int], pieces: Sequence[Piece]
    ) -> None:
        """Post work request `number` for `remote` (address, key). Raises TransferError when the device refuses."""
        verbs = load()
        try:
            if len(pieces) == 1:
                self._request.fill(number, self._opcodes[opcode], remote, pieces[0])
                self._queue_pair.post_send(self._request.work)
            else:
                self._post_scattered(opcode, number, remote, pieces)
        except verbs.PyverbsError as error:
            raise TransferError(f"{self.device.name} took no work: {error}") from error

    def poll(self, max_completions: int) -> list[tuple[int, int]]:
        """(number, status) of work that ended, oldest first; never waits."""
        _, completions = self._completions.poll(max_completions)
        return [(completion.wr_id, completion.status) for completion in completions]

    @property
    def event_fd(self) -> int | None:
        """Readable after the first completion since `arm`; None where completions can only be polled."""
        return None if self._channel is None else int(self._channel.fd)

    def arm(self) -> bool:
        """Ask for an event; False where one was asked for and not taken yet.

        Poll once more before waiting for a new one: what had ended by then makes none.
        """
        if self._is_armed:
            return False
        self._completions.req_notify()
        self._is_armed = True
        return True

    def take_event(self) -> None:
        """After `event_fd` was readable; otherwise it would block all threads."""
        self._channel.get_cq_event(self._completions)
        self._completions.ack_events(1)
        self._is_armed = False

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._queue_pair.close()
            self._close_completions()
            self._request.close()

    def _close_completions(self) -> None:
        self._completions.close()
        if self._channel is not None:
            self._channel.close()

    def _post_scattered(
        self, opcode: Opcode, number: int, remote: tuple[int, int], pieces: Sequence[Piece]
    ) -> None:
        verbs = load()
        elements = [verbs.SGE(*piece) for piece in pieces]
        work = verbs.SendWR(
            wr_id=number,
            opcode=self._opcodes[opcode],
            num_sge=len(elements),
            sg=elements,
            send_flags=self._signaled,
        )
        try:
            work.set_wr_rdma(remote[1], remote[0])
            self._queue_pair.post_send(work)
        finally:
            # Their destructors are misspelt up to pyverbs 63: freed by hand, exactly once.
            work.close()
            for element in elements:
                element.close()


class _Element(ctypes.Structure):
    """struct ibv_sge."""

    _fields_ = (
        ("addr", ctypes.c_uint64),
        ("length", ctypes.c_uint32),
        ("lkey", ctypes.c_uint32),
    )


class _ReusedRequest:
    """A SendWR with one element that is filled anew for every post: nothing to allocate, nothing to leak.

    A device copies a work request while it is posted, so one per queue pair does. Up to pyverbs 61 a SendWR can be
    pointed at an SGE object and reads what is set there; since 62 it tells where its own element lies.
    """

    def __init__(self) -> None:
        verbs = load()
        self._owner = verbs.SGE(0, 0, 0)
        self.work = verbs.SendWR(num_sge=1, sg=[self._owner], send_flags=verbs.IBV_SEND_SIGNALED)
        try:
            self._element: Any = _Element.from_address(self.work.sg_list)
            self._is_pointed = False
        except AttributeError:  # only the setter is there
            self.work.close()  # frees the copy made above
            self.work.sg_list = self._owner
            self._element = self._owner
            self._is_pointed = True

    def fill(self, number: int, opcode: int, remote: tuple[int, int], piece: Piece) -> None:
        element, work = self._element, self.work
        element.addr, element.length, element.lkey = piece
        work.wr_id = number
        work.opcode = opcode
        work.set_wr_rdma(remote[1], remote[0])

    def close(self) -> None:
        """Once. Each piece of C memory here is freed by exactly one of the two."""
        if not self._is_pointed:
            self.work.close()
        self._owner.close()
