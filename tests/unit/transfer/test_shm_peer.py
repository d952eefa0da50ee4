"""The maps of a peer that is gone."""

import os
import socket
import threading
import weakref

import numpy as np
import pytest

from daemons.core.ids import Epoch, HostId
from daemons.core.units import MIB
from daemons.protocol.segment import DataAddress
from daemons.transfer.transports.shm_peer import ShmPeer
from daemons.transfer.transports.stream import StreamPool

ADDRESS = DataAddress(host_id=HostId("h"), unix_path="/nowhere", tcp="", epoch=Epoch(1))


def test_who_learns_that_a_peer_died_does_not_free_its_memory() -> None:
    """Which takes the kernel a millisecond a MiB where the dead peer's pages were mapped here last."""
    ours, theirs = socket.socketpair()
    peer = ShmPeer(ADDRESS, ours, 0, StreamPool(lambda _: ours))
    freed_by: list[threading.Thread] = []
    is_freed = threading.Event()

    def freed() -> None:
        freed_by.append(threading.current_thread())
        is_freed.set()

    peer.maps[1] = np.zeros(64 * MIB, np.uint8)
    weakref.finalize(peer.maps[1], freed)
    theirs.close()
    assert not peer.is_alive()
    peer.close()
    assert is_freed.wait(20)
    assert freed_by != [threading.current_thread()]
    assert not peer.maps


def test_where_no_thread_can_begin_a_peer_is_let_go_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in what a program does at its exit."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    ours, theirs = socket.socketpair()
    peer = ShmPeer(ADDRESS, ours, 0, StreamPool(lambda _: ours))
    peer.maps[1] = np.zeros(64 * MIB, np.uint8)
    freed = weakref.finalize(peer.maps[1], lambda: None)
    file = os.open("/dev/null", os.O_RDONLY)
    peer.files[1] = file
    monkeypatch.setattr(threading.Thread, "start", refuse)
    peer.close()
    theirs.close()
    assert not freed.alive
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
