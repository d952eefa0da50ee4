"""Measuring data paths: a small region that a process offers for it, and READs of another one's, timed.

Only ever READs zeros of memory made for this; what it costs the measured node is the bandwidth of `PROBE_S`.
"""

import statistics
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from daemons.core.errors import ConfigError, McError, Unavailable
from daemons.core.ids import new_epoch
from daemons.core.units import MIB
from daemons.protocol.probe import PathMeasure
from daemons.protocol.segment import DataAddress, Grant, RegionRef
from daemons.transfer.engine import TransferEngine
from daemons.transfer.links import interface_to
from daemons.transfer.memory import allocate_shared, host_id
from daemons.transfer.strided import contiguous
from daemons.transfer.transports.base import Read

PROBE_BYTES: Final = 4 * MIB
PROBE_S: Final = 0.3
_LATENCY_BYTES: Final = 64
_MAX_LATENCIES: Final = 1000
_TIMEOUT_S: Final = 2.0
_DELIVER_S: Final = 4.0
"""For the whole region over a slow path that has just answered."""
_NUM_STREAMS: Final = 4
"""Over a network; one thread copies as fast as the memory of one core allows, so `shm` has one."""

_regions: weakref.WeakKeyDictionary[TransferEngine, RegionRef] = weakref.WeakKeyDictionary()
_regions_lock = threading.Lock()


def probe_region(engine: TransferEngine) -> RegionRef:
    """The engine's region for measuring it: registered when first asked for, gone with the engine."""
    with _regions_lock:
        region = _regions.get(engine)
        if region is None:
            memory = allocate_shared("mooncake-probe", PROBE_BYTES)
            region = _regions[engine] = engine.register(memory)
            memory.close()  # the engine holds the pages as long as the region is registered
        return region


def measure(
    region: RegionRef,
    schemes: Sequence[str],
    seconds: float = PROBE_S,
    *,
    grant: Grant | None = None,
    open_engine: Callable[[str], TransferEngine] | None = None,
) -> PathMeasure:
    """Latency and bandwidth over the first scheme that reaches it. Unavailable, with every reason, when none does.

    `open_engine` makes one for a scheme that knows the cluster's secret; without it the owner may want a `grant`.
    """
    reasons = []
    for scheme in schemes:
        if not _offers(region.address, scheme):
            continue
        try:
            engine = (open_engine or _open_engine)(scheme)
        except ConfigError as error:
            reasons.append(f"{scheme}: {error.message}")
            continue
        try:
            source = _Source(engine, region, grant)
            return _measure(source, scheme, seconds, reasons)
        except McError as error:
            reasons.append(f"{scheme}: {error.message}")
        finally:
            engine.close()
    raise Unavailable("; ".join(reasons) or "it offers none of the transports of this process")


def _offers(address: DataAddress, scheme: str) -> bool:
    """Whether it is worth a try; what fails then is a path that should work."""
    match scheme:
        case "shm":
            return bool(address.unix_path) and address.host_id == host_id()
        case "rdma":
            return bool(address.rdma)
        case _:
            return bool(address.tcp)


def _open_engine(scheme: str) -> TransferEngine:
    return TransferEngine(epoch=new_epoch(), transports=(scheme,))


@dataclass(frozen=True, slots=True)
class _Source:
    engine: TransferEngine
    region: RegionRef
    grant: Grant | None

    def read(self, reads: Sequence[Read], timeout_s: float) -> None:
        self.engine.read(self.region, reads, capability=self.grant, timeout_s=timeout_s)


def _measure(source: _Source, scheme: str, seconds: float, reasons: list[str]) -> PathMeasure:
    latency_s = _latency(source, seconds / 3)
    rate = _bandwidth(source, 1 if scheme == "shm" else _NUM_STREAMS, seconds)
    nic = "" if scheme == "shm" else interface_to(source.region.address.tcp)
    link = source.engine.topology.link_bytes_per_s(nic) if nic else None
    return PathMeasure(
        transport=scheme,
        latency_s=latency_s,
        bytes_per_s=rate,
        nic=nic,
        link_bytes_per_s=link,
        passed_over=reasons,
    )


def _latency(source: _Source, seconds: float) -> float:
    local = np.zeros(_LATENCY_BYTES, np.uint8)
    reads = [Read.into(contiguous(0, min(_LATENCY_BYTES, source.region.size_bytes)), local)]
    source.read(reads, _TIMEOUT_S)  # connects
    took: list[float] = []
    end_s = time.monotonic() + seconds
    while not took or (time.monotonic() < end_s and len(took) < _MAX_LATENCIES):
        began_s = time.perf_counter()
        source.read(reads, _TIMEOUT_S)
        took.append(time.perf_counter() - began_s)
    return statistics.median(took)


def _bandwidth(source: _Source, num_streams: int, seconds: float) -> float:
    """Bytes a second of all streams together, each reading the whole region again and again."""
    length = source.region.size_bytes

    def run(_: int) -> int:
        local = np.zeros(length, np.uint8)
        reads = [Read.into(contiguous(0, length), local)]
        source.read(reads, _DELIVER_S)
        ready.wait(_DELIVER_S)
        done = 0
        while time.monotonic() < began_s[0] + seconds:
            source.read(reads, max(_DELIVER_S, seconds))
            done += length
        return done

    began_s = [0.0]
    ready = threading.Barrier(num_streams, lambda: began_s.__setitem__(0, time.monotonic()))
    with ThreadPoolExecutor(num_streams) as pool:
        total = sum(pool.map(_breaking(ready, run), range(num_streams)))
    return total / (time.monotonic() - began_s[0])


def _breaking(ready: threading.Barrier, run: Callable[[int], int]) -> Callable[[int], int]:
    """A stream that fails must not leave the others waiting for it."""

    def guarded(index: int) -> int:
        try:
            return run(index)
        except threading.BrokenBarrierError:
            return 0
        except BaseException:
            ready.abort()
            raise

    return guarded
