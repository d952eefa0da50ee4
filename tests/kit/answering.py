"""A server of the protocol that says Ok to everything, or what a test tells it to."""

import threading
from collections.abc import Callable

from daemons.core.ids import Incarnation, NodeId
from daemons.protocol.base import Ok
from daemons.protocol.node import HelloReply
from daemons.rpc import Call, Loop, Server


class Answering:
    """A server in a thread of its own; `handle` is run there."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.handle: Callable[[Call], object] = lambda call: call.reply(Ok())
        hello = HelloReply(node=NodeId("s"), role="master", incarnation=Incarnation(3))
        self.server = Server(
            self.loop, "tcp://127.0.0.1:*", lambda: hello, lambda call: self.handle(call)
        )
        self._thread = threading.Thread(target=self.loop.run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.loop.stop()
        self._thread.join(30)
        self.server.close()
        self.loop.close()
