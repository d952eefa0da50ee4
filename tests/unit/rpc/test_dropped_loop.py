"""Whoever drops a loop without closing it goes on: what it had open is freed, and nobody waits for a socket."""

import os
import subprocess
import sys

PROGRAM = """
import gc, os, sys
import zmq
from daemons.core.errors import Unavailable
from daemons.protocol.node import ListNodes
from daemons.rpc import Channel, Loop

def ask(endpoint):
    channel = Channel(Loop(), endpoint)
    channel.itself = channel  # only the collector frees a cycle
    try:
        channel.call(ListNodes(), timeout_s=0.2)
    except Unavailable:
        pass

listener = zmq.Context().socket(zmq.ROUTER)
port = listener.bind_to_random_port("tcp://127.0.0.1")
ask(f"tcp://127.0.0.1:{port}")
gc.collect()
before = len(os.listdir("/proc/self/fd"))
for _ in range(3):
    ask(f"tcp://127.0.0.1:{port}")
    gc.collect()
print(len(os.listdir("/proc/self/fd")) - before)
"""


def test_dropped_loop_ends_its_sockets_and_keeps_nobody_waiting() -> None:
    """In a process of its own: before, the collector never came back."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 0, "descriptors are left"
