"""A node's tie to its master: join, beat, join again whenever the master is new or has forgotten us.

A lower incarnation than one already met is an old master that woke up: it is told so and never obeyed.
"""

import logging
from collections.abc import Callable

from daemons.core.errors import McError, Unavailable
from daemons.core.ids import Incarnation
from daemons.protocol.base import Message
from daemons.protocol.key import AllowedKeys
from daemons.protocol.messages import Notice, Reply
from daemons.protocol.node import Beat, InstanceLoad, Join, JoinReply, Leave, NodeDescription
from daemons.rpc import Channel, Loop

log = logging.getLogger(__name__)

_RETRY_S = 0.2
_JOIN_TIMEOUT_S = 2.0


class MasterLink:
    """Starts at once and never gives up. Loop thread only."""

    def __init__(  # noqa: PLR0913  # what a node is to its master, by keyword
        self,
        loop: Loop,
        endpoint: str,
        describe: Callable[[], NodeDescription],
        *,
        load: Callable[[], InstanceLoad | None] = lambda: None,
        on_joined: Callable[[Incarnation], object] = lambda _: None,
        on_notice: Callable[[Notice], object] | None = None,
        on_keys: Callable[[AllowedKeys], object] = lambda _: None,
    ) -> None:
        self.loop = loop
        self.channel = Channel(loop, endpoint, self._hear_notice)
        self.incarnation = Incarnation(0)
        self.is_joined = False
        self.last_contact_s = loop.clock()
        """When the master last answered; a node alone for long falls back to its own decisions."""
        self._describe = describe
        self._load = load
        self._on_joined = on_joined
        self._on_notice = on_notice
        self._on_keys = on_keys
        self._interval_s = _RETRY_S
        self._is_leaving = False
        self._refused_why = ""
        self._join()

    def leave(self, on_left: Callable[[], object], timeout_s: float = 1.0) -> None:
        """Say goodbye, then call `on_left`, whether or not the master heard it."""
        self._is_leaving = True
        if not self.is_joined:
            on_left()
            return
        node = self._describe()
        leave = Leave(node=node.node, epoch=node.epoch)
        self.ask(leave, timeout_s=timeout_s, on_reply=lambda _: on_left())

    def close(self) -> None:
        self._is_leaving = True
        self.channel.close()

    def ask(
        self, message: Message, *, timeout_s: float, on_reply: Callable[[Reply | McError], object]
    ) -> None:
        """Exactly one `on_reply`, whatever happens: a channel that is full or closed is an error like others."""
        try:
            self.channel.request(message, timeout_s=timeout_s, on_reply=on_reply)
        except McError as error:
            on_reply(error)

    def _hear_notice(self, notice: Notice) -> None:
        """The keys are the loop's: all servers and channels of this process go by them, and its data port."""
        if isinstance(notice, AllowedKeys):
            if self.loop.identity is not None:
                self.loop.identity.allowed.replace(notice.keys)
                self._on_keys(notice)
        elif self._on_notice is not None:
            self._on_notice(notice)

    def _join(self) -> None:
        if self._is_leaving:
            return
        join = Join(node=self._describe(), incarnation_seen=self.incarnation)
        self.ask(join, timeout_s=_JOIN_TIMEOUT_S, on_reply=self._on_join_reply)

    def _on_join_reply(self, reply: Reply | McError) -> None:
        if self._is_leaving:
            return
        if not isinstance(reply, JoinReply):
            self._say_refused(reply)
            self.loop.call_later(_RETRY_S, self._join)
            return
        if reply.incarnation < self.incarnation:
            log.warning(
                "old master refused incarnation=%d seen=%d", reply.incarnation, self.incarnation
            )
            self.loop.call_later(_RETRY_S, self._join)
            return
        self.incarnation = self.channel.incarnation = reply.incarnation
        self.is_joined = True
        self._refused_why = ""
        self.last_contact_s = self.loop.clock()
        self._interval_s = reply.beat_interval_ms / 1000
        log.info("joined master=%s incarnation=%d", self.channel.endpoint, self.incarnation)
        self._on_joined(self.incarnation)
        self.loop.call_later(self._interval_s, self._beat)

    def _say_refused(self, reply: Reply | McError) -> None:
        """Once, not at every attempt: a node that never gets in must not look well in its log."""
        why = str(reply)
        level = logging.WARNING if isinstance(reply, Unavailable) else logging.ERROR
        log.log(
            level if why != self._refused_why else logging.DEBUG,
            "not joined master=%s why=%s",
            self.channel.endpoint,
            why,
        )
        self._refused_why = why

    def _beat(self) -> None:
        if self._is_leaving or not self.is_joined:
            return
        node = self._describe()
        beat = Beat(node=node.node, epoch=node.epoch, load=self._load(), ticks_ms=node.ticks_ms)
        self.ask(beat, timeout_s=_JOIN_TIMEOUT_S, on_reply=self._on_beat_reply)

    def _on_beat_reply(self, reply: Reply | McError) -> None:
        if self._is_leaving or not self.is_joined:
            return
        if isinstance(reply, McError):
            level = logging.INFO if isinstance(reply, Unavailable) else logging.WARNING
            log.log(level, "lost the master why=%s", reply.message)
            self.is_joined = False
            self._join()
            return
        self.last_contact_s = self.loop.clock()
        self.loop.call_later(self._interval_s, self._beat)
