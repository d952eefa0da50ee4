"""Run on the test's machine, by its installed Python: puts blocks into a cache node over TCP, and reads them back.

blocks.py put CONTROL FIRST NUM     print how many the node acknowledged
blocks.py wait MASTER FIRST... NUM  print how many of these rows the master finds and have their bytes, once it is all
                                    of them or a minute has passed
blocks.py gone MASTER FIRST NUM     print how many the master finds, once it is none or a minute has passed
"""

import sys
import time

import numpy as np
from numpy.typing import NDArray

from daemons.client.store import BlockReader, put_blocks
from daemons.core.errors import McError
from daemons.core.ids import BlockHash, new_epoch
from daemons.protocol.block import BlockLocation, BlockMeta, PutBlock
from daemons.protocol.lookup import Locate, LocateReply
from daemons.protocol.segment import Source, Strided
from daemons.rpc import SyncClient
from daemons.transfer import TransferEngine

NUM_LAYERS = 4
ROW_BYTES = 4096
BLOCK_BYTES = 2 * NUM_LAYERS * ROW_BYTES
WAIT_S = 60.0


def content(first: int, num: int) -> NDArray[np.uint8]:
    return np.random.default_rng(first).integers(0, 256, num * BLOCK_BYTES, np.uint8)


def name_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "big"))


def put(engine: TransferEngine, control: str, first: int, num: int) -> int:
    region = engine.register(content(first, num))
    blocks = [
        PutBlock(
            meta=BlockMeta(
                hash=name_of(first + number),
                parent=name_of(1 << 100),
                namespace=b"systemd-test",
                depth=0,
                num_tokens=64,
                model="test",
            ),
            source=Source(
                region=region,
                ranges=Strided(
                    offset=number * BLOCK_BYTES,
                    row_bytes=ROW_BYTES,
                    num_rows=2 * NUM_LAYERS,
                    stride_bytes=ROW_BYTES,
                ),
            ),
            num_layers=NUM_LAYERS,
        )
        for number in range(num)
    ]
    with SyncClient(control) as client:
        return put_blocks(client, blocks).results.count("stored")


def locate(master: str, first: int, num: int) -> dict[int, BlockLocation]:
    """By number in the row."""
    hashes = [name_of(first + n) for n in range(num)]
    with SyncClient(master) as client:
        reply = client.request(Locate(hashes=hashes, lease_ms=0))
    assert isinstance(reply, LocateReply)
    return {n: replicas[0] for n, replicas in enumerate(reply.unpack()) if replicas}


def check(engine: TransferEngine, master: str, first: int, num: int) -> int:
    reader, expected = BlockReader(engine), content(first, num).reshape(num, BLOCK_BYTES)
    found = locate(master, first, num).items()
    return sum(reader.read_block(where) == expected[n].tobytes() for n, where in found)


def wait(engine: TransferEngine, master: str, first: int, num: int) -> int:
    deadline_s, found = time.monotonic() + WAIT_S, -1
    while found < num and time.monotonic() < deadline_s:
        try:
            found = check(engine, master, first, num)
        except McError:  # the master or the node is not there yet
            found = -1
        if found < num:
            time.sleep(0.1)
    return found


def gone(master: str, first: int, num: int) -> int:
    deadline_s = time.monotonic() + WAIT_S
    while (found := len(locate(master, first, num))) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return found


def main(words: list[str]) -> None:
    engine = TransferEngine(epoch=new_epoch(), transports=("tcp",))
    try:
        match words:
            case ["put", control, first, num]:
                result = put(engine, control, int(first), int(num))
            case ["gone", master, first, num]:
                result = gone(master, int(first), int(num))
            case ["wait", master, *firsts, num]:
                result = sum(wait(engine, master, int(first), int(num)) for first in firsts)
            case _:
                raise SystemExit(__doc__)
    finally:
        engine.close()
    sys.stdout.write(f"{result}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
