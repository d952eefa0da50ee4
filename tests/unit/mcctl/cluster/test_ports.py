"""Ports are kept for a daemon before it starts and while it is away."""

import gc
import socket
from http.server import HTTPServer, SimpleHTTPRequestHandler

import pytest
import zmq

from mcctl.cluster.ports import ReservedPorts


def test_a_reserved_port_is_given_to_nobody_else() -> None:
    ports, others = ReservedPorts(), ReservedPorts()
    mine, theirs = ({p.take() for _ in range(50)} for p in (ports, others))
    assert len(mine) == len(theirs) == 50
    assert not mine & theirs
    with socket.socket() as probe, pytest.raises(OSError, match="in use"):
        probe.bind(("127.0.0.1", mine.pop()))


def test_servers_listen_on_it_one_after_the_other_and_between_them_nobody_answers() -> None:
    ports = ReservedPorts()
    port = ports.take()
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 10)
        HTTPServer(("127.0.0.1", port), SimpleHTTPRequestHandler).server_close()
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.bind(f"tcp://127.0.0.1:{port}")
            socket.create_connection(("127.0.0.1", port), 10).close()
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", port))


def test_ports_are_given_back_one_by_one_and_with_who_reserved_them() -> None:
    ports = ReservedPorts()
    first, second = ports.take(), ports.take()
    ports.free(first)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", first))
    del ports
    gc.collect()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", second))
