"""Asking a node about its data path: where it is, and how fast it reads another node's."""

import time

from daemons.core.errors import Exhausted, ProtocolError
from daemons.protocol.probe import DataProbe, DataProbeReply
from daemons.protocol.segment import RegionRef
from daemons.rpc import Identity, SyncClient


def ask_probe(
    control: str,
    target: RegionRef | None = None,
    timeout_s: float = 5.0,
    identity: Identity | None = None,
) -> DataProbeReply:
    """One question to one node; waits its turn while the node measures for someone else."""
    deadline_s = time.monotonic() + timeout_s
    with SyncClient(control, timeout_s, identity) as client:
        while True:
            try:
                reply = client.request(DataProbe(target=target))
            except Exhausted as error:
                wait_s = (error.retry_after_ms or 100) / 1000
                if time.monotonic() + wait_s > deadline_s:
                    raise
                time.sleep(wait_s)
                continue
            if not isinstance(reply, DataProbeReply):
                raise ProtocolError(f"{control} answered DataProbe with {type(reply).__name__}")
            return reply
