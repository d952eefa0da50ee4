"""What RDMA costs here, printed: CPU per slice beside a bare pyverbs loop, bandwidth beside perftest's."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable

import numpy as np
import pytest
from vm.conftest import MakeTransport, Peer
from vm.measured import report
from vm.peer import SIZE_BYTES, make_region

from daemons.protocol.segment import Strided
from daemons.transfer.memory import allocate_shared
from daemons.transfer.strided import contiguous
from daemons.transfer.transports.base import Read, ReadBatch, Write, WriteBatch
from daemons.transfer.transports.rdma.verbs import load

ROWS = Strided(offset=0, row_bytes=64, num_rows=400, stride_bytes=128)
TIMEOUT_S = 60.0


def cpu_s(run: Callable[[], object]) -> float:
    """CPU time of the calling thread, which polls, too."""
    started_s = time.thread_time()
    run()
    return time.thread_time() - started_s


def test_cpu_of_a_slice_is_near_that_of_a_bare_loop(
    make_transport: MakeTransport, own_peer: Peer
) -> None:
    transport = make_transport(device_names=["rxe0"])
    memory = allocate_shared("target", SIZE_BYTES)
    transport.register(make_region(9, memory))
    batch = ReadBatch(own_peer.source, [Read.into(ROWS, memory.array)], None, TIMEOUT_S)

    # The same queue pair, keys and slices, by hand, as pyverbs' own examples do it.
    verbs = load()
    peer = transport._peer(batch)
    remote = peer.region(1)
    endpoint = transport._pool.acquire(peer, peer.paths[0], batch.remaining_s)
    registration = transport._registrations.get(9)
    key, queue = registration.local_keys[0][0], endpoint.queue_pair
    window = endpoint.num_reads

    def bare() -> None:
        posted = ended = 0
        while ended < ROWS.num_rows:
            while posted < ROWS.num_rows and posted - ended < window:
                element = verbs.SGE(registration.address + posted * 64, 64, key)
                work = verbs.SendWR(
                    wr_id=posted,
                    opcode=verbs.IBV_WR_RDMA_READ,
                    num_sge=1,
                    sg=[element],
                    send_flags=verbs.IBV_SEND_SIGNALED,
                )
                work.set_wr_rdma(remote.keys[0][0], remote.address + posted * 128)
                queue._queue_pair.post_send(work)
                work.close()
                element.close()
                posted += 1
            number, completions = queue._completions.poll(16)
            for completion in completions:
                assert completion.status == verbs.IBV_WC_SUCCESS
            ended += number
            if not number:
                time.sleep(0)

    # In turns, so that what else runs on the machine meets both; the transport takes a queue pair of its own.
    rounds = [(cpu_s(lambda: transport.read(batch)), cpu_s(bare)) for _ in range(7)]
    ours_s, bare_s = (min(took) for took in zip(*rounds, strict=True))
    transport._pool.release(endpoint)
    per_slice = [f"{seconds / ROWS.num_rows * 1e6:.1f} us" for seconds in (ours_s, bare_s)]
    report(f"CPU per slice: {per_slice[0]}, bare loop {per_slice[1]}, ratio {ours_s / bare_s:.2f}")
    assert ours_s < 2 * bare_s, "the aim is 1.3; a shared machine is given some room"


@pytest.mark.parametrize("way", ["read", "write"])
def test_bandwidth_beside_perftest(way: str, make_transport: MakeTransport, own_peer: Peer) -> None:
    transport = make_transport(device_names=["rxe0"])
    memory = allocate_shared("memory", SIZE_BYTES)
    memory.array[:] = 1
    transport.register(make_region(9, memory))
    span = contiguous(0, SIZE_BYTES)

    def move() -> None:
        if way == "read":
            transport.read(
                ReadBatch(own_peer.source, [Read.into(span, memory.array)], None, TIMEOUT_S)
            )
        else:
            transport.write(WriteBatch(own_peer.writable, [Write.at(0, memory.array)], TIMEOUT_S))

    move()
    took = []
    for _ in range(5):
        started_s = time.monotonic()
        move()
        took.append(time.monotonic() - started_s)
    ours = SIZE_BYTES / float(np.median(took)) / 2**20
    theirs = _perftest(way)
    beside = (
        f"ib_{way}_bw {theirs:.0f} MiB/s, ratio {ours / theirs:.2f}" if theirs else "no perftest"
    )
    report(f"{way} of 1 MiB slices: {ours:.0f} MiB/s; {beside}")
    assert ours > 1


def _perftest(way: str) -> float | None:
    """MiB/s of `ib_read_bw` or `ib_write_bw` at 1 MiB over the same cable; None where it is not installed."""
    program = shutil.which(f"ib_{way}_bw")
    if program is None:
        return None
    common = [program, "-s", "1048576", "-n", "20", "-x", "1", "-p", "19000", "-F"]
    server = subprocess.Popen([*common, "-d", "rxe0p"], stdout=subprocess.DEVNULL)
    try:
        for _ in range(20):
            time.sleep(0.5)
            done = subprocess.run(
                [*common, "-d", "rxe0", "127.0.0.1"], capture_output=True, text=True, check=False
            )
            rows = [line.split() for line in done.stdout.splitlines()]
            for row in rows:
                with contextlib.suppress(ValueError, IndexError):
                    if row[0] == "1048576":
                        return float(row[3])
            if server.poll() is not None:
                return None
        return None
    finally:
        server.kill()
        server.wait()
