"""Whoever connects to /metrics and is silent, or goes away, costs a daemon little, and not for ever."""

import socket
import struct
import threading
import urllib.request

import pytest
from kit.daemon import wait_for
from prometheus_client import CollectorRegistry, Gauge

from daemons.service import metrics_http
from daemons.service.metrics import MetricsServer


def num_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_silent_peers_take_a_bounded_number_of_threads_and_lose_them(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_http._Scrape, "timeout", 0.5)
    registry = CollectorRegistry()
    Gauge("mc_shown", "", registry=registry).set(7)
    server = MetricsServer("127.0.0.1:0", registry)
    host, port = server.address.split(":")
    silent = [socket.create_connection((host, int(port)), 20) for _ in range(60)]
    try:
        most = 0

        def are_closed() -> bool:
            nonlocal most
            most = max(most, num_threads())
            return not num_threads() and all(is_closed(each) for each in silent)

        wait_for(are_closed, what="the end of silent connections")
        assert most <= metrics_http.MAX_SCRAPES
        reset = silent.pop()
        reset.close()
        with socket.create_connection((host, int(port)), 20) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=20) as answer:
            assert b"mc_shown 7.0" in answer.read()
    finally:
        for each in silent:
            each.close()
        server.close()
    assert "Traceback" not in capfd.readouterr().err


def is_closed(peer: socket.socket) -> bool:
    """By the other end."""
    peer.setblocking(False)
    try:
        return not peer.recv(1)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
