"""Run in another network namespace, one JSON line on stdout per result: offers memory, reads it, reads it striped.

python -m kit.remote_memory offer SEED BYTES HOST...      a region per address, over the same memory
python -m kit.remote_memory read SECONDS TIMEOUT REGION   1 MiB READs one after the other
python -m kit.remote_memory stripe TIMEOUT REGION...      all of it once, spread by a PathBook over the regions
"""

import queue
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
from numpy.typing import NDArray

from daemons.core.errors import McError
from daemons.core.ids import new_epoch
from daemons.core.units import MIB
from daemons.protocol.segment import RegionRef
from daemons.transfer import Read, TransferEngine, contiguous
from daemons.transfer.plan import Path, PathBook, PathPolicy, Send
from daemons.transfer.slices import Span, cut


def pattern(seed: int, num_bytes: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, num_bytes, np.uint8)


def say(**result: object) -> None:
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    sys.stdout.flush()


def region_of(text: str) -> RegionRef:
    return msgspec.msgpack.decode(bytes.fromhex(text), type=RegionRef)


def offer(seed: int, num_bytes: int, hosts: list[str]) -> None:
    """Until its stdin ends."""
    memory = pattern(seed, num_bytes)
    engines = [
        TransferEngine(epoch=new_epoch(), bind_host=host, transports=("tcp",)) for host in hosts
    ]
    regions = [engine.register(memory) for engine in engines]
    say(regions=[msgspec.msgpack.encode(region).hex() for region in regions])
    sys.stdin.read()
    for engine in engines:
        engine.close()


def read(seconds: float, timeout_s: float, region: RegionRef) -> None:
    engine = TransferEngine(epoch=new_epoch(), transports=("tcp",))
    local = np.zeros(MIB, np.uint8)
    end_s = time.monotonic() + seconds
    index = 0
    while time.monotonic() < end_s:
        offset = index % (region.size_bytes // MIB) * MIB
        index += 1
        began_s = time.monotonic()
        try:
            engine.read(region, [Read.into(contiguous(offset, MIB), local)], timeout_s=timeout_s)
        except McError as error:
            say(
                error=type(error).__name__,
                message=error.message,
                took_s=time.monotonic() - began_s,
            )
            time.sleep(0.05)
        else:
            say(offset=offset, checksum=int(local.sum()), took_s=time.monotonic() - began_s)
    engine.close()


def stripe(timeout_s: float, regions: list[RegionRef]) -> None:
    engine = TransferEngine(epoch=new_epoch(), transports=("tcp",))
    by_name = {f"path{i}": region for i, region in enumerate(regions)}
    size = regions[0].size_bytes
    local = np.zeros(size, np.uint8)
    paths = [Path(name, 12.5e6, max_in_flight=2) for name in by_name]
    book = PathBook(paths, PathPolicy(pause_s=0.5))
    landed: queue.SimpleQueue[tuple[Send, str]] = queue.SimpleQueue()
    carried = dict.fromkeys(by_name, 0)

    def carry(send: Send) -> None:
        reads = [
            Read.into(contiguous(span.remote, span.length), local, span.local)
            for span in send.slice.spans
        ]
        try:
            engine.read(by_name[send.path], reads, timeout_s=timeout_s)
        except McError as error:
            landed.put((send, error.message))
        else:
            landed.put((send, ""))

    began_s = time.monotonic()
    book.submit(cut([Span(0, 0, size)], MIB))
    end = None
    with ThreadPoolExecutor(2 * len(paths)) as pool:
        while end is None:
            while send := book.next(time.monotonic()):
                say(sent=send.path, is_trial=send.is_trial)
                pool.submit(carry, send)
            send, error = landed.get()
            if error:
                say(failed=send.path, message=error)
                end = book.failed(send.ticket, error, time.monotonic())
            else:
                carried[send.path] += send.slice.length
                end = book.completed(send.ticket, time.monotonic())
    say(
        end=end.error,
        took_s=time.monotonic() - began_s,
        carried=carried,
        checksum=int(local.sum(dtype=np.uint64)),
        digest=bytes(local[:: MIB // 4]).hex(),
    )
    engine.close()


def main(words: list[str]) -> None:
    match words:
        case ["offer", seed, num_bytes, *hosts]:
            offer(int(seed), int(num_bytes), hosts)
        case ["read", seconds, timeout_s, region]:
            read(float(seconds), float(timeout_s), region_of(region))
        case ["stripe", timeout_s, *regions]:
            stripe(float(timeout_s), [region_of(region) for region in regions])
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
