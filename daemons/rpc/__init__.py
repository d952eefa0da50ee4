"""How processes talk: one loop per thread, servers, channels, events. ZeroMQ lives here and nowhere else."""

from daemons.rpc.background import Background
from daemons.rpc.client import Channel, Pending
from daemons.rpc.embedded import Embedded
from daemons.rpc.events import Published, Publisher, Subscriber, event_or_none
from daemons.rpc.keys import AllowedList, Identity, KeyPair
from daemons.rpc.loop import Loop, Timer
from daemons.rpc.server import Call, Server
from daemons.rpc.sync_client import SyncClient

__all__ = [
    "AllowedList",
    "Background",
    "Call",
    "Channel",
    "Embedded",
    "Identity",
    "KeyPair",
    "Loop",
    "Pending",
    "Published",
    "Publisher",
    "Server",
    "Subscriber",
    "SyncClient",
    "Timer",
    "event_or_none",
]
