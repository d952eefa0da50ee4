"""The other process of the RDMA tests: owns a region of known bytes, a writable one and generations; obeys stdin."""

import json
import sys

import numpy as np

from daemons.core.ids import new_epoch
from daemons.transfer.buffers import as_bytes
from daemons.transfer.memory import Access, Region, SharedMemory, allocate_shared
from daemons.transfer.strided import ByteArray
from daemons.transfer.transports.rdma import RdmaTransport, Retries

SIZE_BYTES = 8 << 20
SEED = 7


def make_region(
    region_id: int, memory: SharedMemory | ByteArray, access: Access = "read"
) -> Region:
    array = memory.array if isinstance(memory, SharedMemory) else as_bytes(memory)
    return Region(region_id, array, array.data, None, access)


def known_bytes(seed: int = SEED) -> ByteArray:
    return np.random.default_rng(seed).integers(0, 256, SIZE_BYTES, np.uint8)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    received: list[tuple[int, str]] = []

    def deliver(region_id: int, message: bytes) -> bool:
        received.append((region_id, message.decode()))
        return True

    transport = RdmaTransport(
        new_epoch(),
        "127.0.0.1",
        deliver=deliver,
        device_names=arguments["devices"],
        retries=Retries(**arguments["retries"]),
        secret=arguments["secret"].encode() or None,
    )
    source = allocate_shared("source", SIZE_BYTES)
    source.array[:] = known_bytes()
    writable = allocate_shared("writable", SIZE_BYTES)
    generations = allocate_shared("generations", 4096)
    words = generations.array.view("<u8")
    words[:] = 1
    transport.register(make_region(1, source))
    transport.register(make_region(2, writable, "read-write"))
    transport.register(make_region(3, generations))
    hello = {"epoch": transport._epoch, "rdma": transport.endpoint}
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["advance", index]:
                words[int(index)] += 1
                source.array[:] = 0xEE
                reply: object = int(words[int(index)])
            case ["deregister", region_id]:
                transport.deregister(int(region_id))
                reply = "gone"
            case ["register", region_id]:
                transport.register(make_region(int(region_id), np.full(1 << 20, 5, np.uint8)))
                reply = "there"
            case ["cut_off", epoch]:
                transport.cut_off(int(epoch))
                reply = "cut"
            case ["writable", offset, length]:
                part = writable.array[int(offset) : int(offset) + int(length)]
                reply = part.tobytes().hex()
            case ["clear"]:
                writable.array[:] = 0
                reply = "clear"
            case ["served"]:
                reply = transport.num_served
            case ["received"]:
                reply = received
            case other:
                reply = f"unknown: {other}"
        print(json.dumps(reply), flush=True)
    transport.close()


if __name__ == "__main__":
    main()
