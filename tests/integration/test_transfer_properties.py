"""Any sequence of register, submit, cancel, fail and deregister keeps to the regions and never says done too early.

Also: whatever bytes come in on either port, nothing outside of a request's own range changes.
"""

import contextlib
import os
import shutil
import socket
import threading
from pathlib import Path

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from daemons.core.errors import McError
from daemons.core.ids import new_epoch
from daemons.protocol.segment import RegionRef
from daemons.transfer import (
    Read,
    ReadBatch,
    TransferEngine,
    Write,
    WriteBatch,
    allocate_shared,
    contiguous,
)
from daemons.transfer.transports import wire

MARGIN, SIZE = 4096, 256 << 10
GUARD = 0xEE


class Transfers(RuleBasedStateMachine):
    """Two engines; every region lies between margins that nothing may touch, and has a model of its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(f"/tmp/mcp-{os.getpid()}-{id(self)}")
        self.owner = TransferEngine(
            epoch=new_epoch(), unix_dir=self.directory, more_hosts=["127.0.0.2"]
        )
        self.peers = [
            TransferEngine(unix_dir=self.directory, transports=(scheme,))
            for scheme in ("shm", "tcp", "tcp")
        ]
        """The last one uses both addresses of the owner."""
        self.shared = allocate_shared("property", SIZE)
        self.arena = np.full(SIZE + 2 * MARGIN, GUARD, np.uint8)
        self.arena[MARGIN:-MARGIN] = 0
        self.inner = self.arena[MARGIN:-MARGIN]
        self.memory = {"shared": self.shared.array, "private": self.inner}
        self.model = {kind: np.zeros(SIZE, np.uint8) for kind in self.memory}
        self.regions: dict[str, RegionRef] = {}
        self.value = 0

    kinds = st.sampled_from(["shared", "private"])
    spans = st.tuples(st.integers(-10, SIZE), st.integers(1, SIZE + 10))

    @rule(kind=kinds, access=st.sampled_from(["read", "read-write"]))
    def register(self, kind: str, access: str) -> None:
        if kind not in self.regions:
            memory = self.shared if kind == "shared" else self.inner
            self.regions[kind] = self.owner.register(memory, access)  # type: ignore[arg-type]

    def seen(self, kind: str, peer: int) -> RegionRef | None:
        region = self.regions.get(kind)
        if region is None or peer == 2:
            return region
        address = msgspec.structs.replace(region.address, tcp_more=[])
        return msgspec.structs.replace(region, address=address)

    @rule(kind=kinds)
    def deregister(self, kind: str) -> None:
        region = self.regions.pop(kind, None)
        if region is not None:
            self.owner.deregister(region)

    @rule(
        kind=kinds, peer=st.integers(0, 2), span=spans, cancels=st.sampled_from([None, 0.0, 0.001])
    )
    def write(self, kind: str, peer: int, span: tuple[int, int], cancels: float | None) -> None:
        """Straight after wait() the bytes must be readable; after a failure only the range may have changed."""
        region, (offset, length) = self.seen(kind, peer), span
        if region is None:
            return
        self.value = self.value % 200 + 1
        data = np.full(length, self.value, np.uint8)
        handle = self.peers[peer].submit([WriteBatch(region, [Write.at(offset, data)])])
        if cancels is not None:
            threading.Event().wait(cancels)
            handle.cancel()
        try:
            handle.wait(60)
        except McError:
            assert handle.fence(60)
            assert handle.slices()[0].state in ("failed", "cancelled")
            if offset >= 0 and offset + length <= SIZE:
                landed = self.memory[kind][offset : offset + length]
                before = self.model[kind][offset : offset + length]
                assert ((landed == before) | (landed == self.value)).all()
                before[:] = landed
        else:
            assert handle.slices()[0] == ("done", length, length)
            self.model[kind][offset : offset + length] = self.value

    @rule(kind=kinds, peer=st.integers(0, 2), span=spans)
    def read(self, kind: str, peer: int, span: tuple[int, int]) -> None:
        region, (offset, length) = self.seen(kind, peer), span
        if region is None:
            return
        target = np.full(length + 2, GUARD, np.uint8)
        handle = self.peers[peer].submit(
            [ReadBatch(region, [Read.into(contiguous(offset, length), target, 1)])]
        )
        with contextlib.suppress(McError):
            handle.wait(60)
        assert target[0] == target[-1] == GUARD
        if handle.slices()[0].state == "done":
            assert np.array_equal(target[1:-1], self.model[kind][offset : offset + length])

    @invariant()
    def only_what_was_asked_changed(self) -> None:
        assert (self.arena[:MARGIN] == GUARD).all()
        assert (self.arena[-MARGIN:] == GUARD).all()
        for kind, memory in self.memory.items():
            assert np.array_equal(memory, self.model[kind])

    def teardown(self) -> None:
        for engine in (*self.peers, self.owner):
            engine.close()
        del self.memory
        self.shared.close()
        shutil.rmtree(self.directory, ignore_errors=True)


Transfers.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestTransfers = Transfers.TestCase


def test_no_bytes_on_either_port_change_more_than_a_valid_request_may() -> None:
    directory = Path(f"/tmp/mcf-{os.getpid()}")
    engine = TransferEngine(epoch=new_epoch(), unix_dir=directory, require_capability=True)
    writable = np.zeros(1000, np.uint8)
    readonly = np.zeros(1000, np.uint8)
    regions = [engine.register(writable, "read-write"), engine.register(readonly)]
    host, _, port = engine.address.tcp.rpartition(":")
    counts = st.integers(0, 1200) | st.sampled_from([1 << 47, (1 << 64) - 1])
    requests = st.builds(
        lambda op, region, at, length, body, capability: wire.encode_request(
            wire.Request(
                op,
                engine.address.epoch,
                region,
                None,
                (contiguous(at, length),) if op in wire.WITH_RANGES else (),
                capability,
                body,
            )
        ),
        st.sampled_from(list(wire.Op)),
        st.sampled_from([r.region_id for r in regions] + [99]),
        counts,
        counts,
        st.binary(max_size=60) | st.binary(min_size=16, max_size=16),
        st.binary(max_size=40),
    )
    bodies = st.binary(min_size=1, max_size=1200)  # of a WRITE before it
    mangled = st.tuples(requests, st.integers(0, 120), st.binary(max_size=6)).map(
        lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] + len(parts[2]) :]
    )

    @settings(max_examples=250, deadline=None)
    @given(st.lists(requests | mangled | bodies, min_size=1, max_size=4), st.booleans())
    def send(frames: list[bytes], is_unix: bool) -> None:
        sock = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
        with sock, contextlib.suppress(OSError):
            sock.settimeout(60)
            sock.connect(engine.address.unix_path if is_unix else (host, int(port)))
            for frame in frames:
                sock.sendall(frame)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
        assert not readonly.any()
        if not is_unix:  # nobody there is a daemon, and no fuzzed capability verifies
            assert not writable.any()
        writable[:] = 0

    send()
    for region in regions:
        engine.deregister(region)
    engine.close()
    shutil.rmtree(directory, ignore_errors=True)
