"""How bytes move: registered regions, one-sided reads over shared memory or TCP, generations that fence them."""

from daemons.transfer.engine import Handle, TransferEngine
from daemons.transfer.generation import GenerationTable
from daemons.transfer.memory import SharedMemory, allocate_shared, as_bytes, host_id
from daemons.transfer.prefault import prefault, prefault_in_background
from daemons.transfer.strided import ByteArray, contiguous
from daemons.transfer.transports.base import Read, ReadBatch, StaleEpoch, StaleGeneration

__all__ = [
    "ByteArray",
    "GenerationTable",
    "Handle",
    "Read",
    "ReadBatch",
    "SharedMemory",
    "StaleEpoch",
    "StaleGeneration",
    "TransferEngine",
    "allocate_shared",
    "as_bytes",
    "contiguous",
    "host_id",
    "prefault",
    "prefault_in_background",
]
