"""How bytes move: registered regions, READ and WRITE over shared memory, RDMA or TCP, and what fences both."""

from daemons.protocol.segment import Grant, RegionRef
from daemons.transfer.buffers import as_bytes, as_memory
from daemons.transfer.capability import BadCapability, Capability
from daemons.transfer.engine import TransferEngine
from daemons.transfer.generation import GenerationTable
from daemons.transfer.handle import Handle, SliceStatus
from daemons.transfer.memory import (
    Progress,
    SharedMemory,
    adopt_shared,
    allocate_shared,
    host_id,
    reopen_shared,
)
from daemons.transfer.notifications import Notification
from daemons.transfer.prefault import prefault, prefault_in_background
from daemons.transfer.regions import Pinned
from daemons.transfer.strided import ByteArray, contiguous
from daemons.transfer.transports.base import (
    Cancelled,
    NotOver,
    NoTurn,
    Read,
    ReadBatch,
    StaleEpoch,
    StaleGeneration,
    Write,
    WriteBatch,
)
from daemons.transfer.view import View

__all__ = [
    "BadCapability",
    "ByteArray",
    "Cancelled",
    "Capability",
    "GenerationTable",
    "Grant",
    "Handle",
    "NoTurn",
    "NotOver",
    "Notification",
    "Pinned",
    "Progress",
    "Read",
    "ReadBatch",
    "RegionRef",
    "SharedMemory",
    "SliceStatus",
    "StaleEpoch",
    "StaleGeneration",
    "TransferEngine",
    "View",
    "Write",
    "WriteBatch",
    "adopt_shared",
    "allocate_shared",
    "as_bytes",
    "as_memory",
    "contiguous",
    "host_id",
    "prefault",
    "prefault_in_background",
    "reopen_shared",
]
