"""Run in another network namespace, one JSON line on stdout per result: offers memory, reads it, reads all of it.

python -m kit.remote_memory offer SEED BYTES HOST...      one region behind all the addresses
python -m kit.remote_memory read SECONDS TIMEOUT REGION   1 MiB READs one after the other
python -m kit.remote_memory stripe TIMEOUT REGION         all of it once, and ten times a second how its paths do
"""

import sys
import threading
import time

import msgspec
import numpy as np
from numpy.typing import NDArray

from daemons.core.errors import McError
from daemons.core.ids import new_epoch
from daemons.core.units import MIB
from daemons.protocol.segment import RegionRef
from daemons.transfer import Read, TransferEngine, contiguous


def pattern(seed: int, num_bytes: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, num_bytes, np.uint8)


def say(**result: object) -> None:
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    sys.stdout.flush()


def region_of(text: str) -> RegionRef:
    return msgspec.msgpack.decode(bytes.fromhex(text), type=RegionRef)


def offer(seed: int, num_bytes: int, hosts: list[str]) -> None:
    """Until its stdin ends."""
    first, *more = hosts
    engine = TransferEngine(
        epoch=new_epoch(), bind_host=first, more_hosts=more, transports=("tcp",)
    )
    region = engine.register(pattern(seed, num_bytes))
    say(region=msgspec.msgpack.encode(region).hex())
    sys.stdin.read()
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


def stripe(timeout_s: float, region: RegionRef) -> None:
    engine = TransferEngine(epoch=new_epoch(), transports=("tcp",))
    local = np.zeros(region.size_bytes, np.uint8)
    is_over = threading.Event()

    def carried() -> dict[str, int]:
        return {view.name: view.carried_bytes for view in engine.paths(region.address)}

    def watch() -> None:
        while not is_over.wait(0.1):
            views = engine.paths(region.address)
            say(carried=carried(), states={view.name: view.state for view in views})

    watcher = threading.Thread(target=watch)
    watcher.start()
    began_s = time.monotonic()
    try:
        engine.read(region, [Read.into(contiguous(0, local.nbytes), local)], timeout_s=timeout_s)
    finally:
        took_s = time.monotonic() - began_s
        is_over.set()
        watcher.join()
    say(
        took_s=took_s,
        carried=carried(),
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
        case ["stripe", timeout_s, region]:
            stripe(float(timeout_s), region_of(region))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
