"""Channels to many peers, one per endpoint, bounded; those nobody used for a while are closed. Loop thread only."""

from daemons.core.errors import Exhausted, Unavailable
from daemons.rpc import Channel, Loop


class ChannelPool:
    """Endpoints come from the master's plans, so a cluster that grew or moved must not leak connections."""

    def __init__(self, loop: Loop, *, max_channels: int = 256, idle_s: float = 60.0) -> None:
        self._loop = loop
        self._max_channels = max_channels
        self._idle_s = idle_s
        self._channels: dict[str, Channel] = {}
        self._is_closed = False
        self._sweeper = loop.every(idle_s / 2, self.close_idle)

    def __len__(self) -> int:
        return len(self._channels)

    def get(self, endpoint: str) -> Channel:
        """The endpoint's channel, made on first use. Raises Exhausted when all of a full pool are busy."""
        if self._is_closed:
            raise Unavailable("this process is shutting down")
        channel = self._channels.get(endpoint)
        if channel is None:
            if len(self._channels) >= self._max_channels:
                self._close_least_recent()
            channel = self._channels[endpoint] = Channel(self._loop, endpoint)
        return channel

    def close_idle(self) -> None:
        now_s = self._loop.clock()
        for endpoint, channel in list(self._channels.items()):
            if not channel.num_pending and now_s - channel.last_used_s >= self._idle_s:
                self._channels.pop(endpoint).close()

    def close(self) -> None:
        """What fails by it may ask for the next channel, and gets none."""
        self._sweeper.cancel()
        self._is_closed = True
        while self._channels:
            self._channels.popitem()[1].close()

    def _close_least_recent(self) -> None:
        idle = [endpoint for endpoint, channel in self._channels.items() if not channel.num_pending]
        if not idle:
            raise Exhausted(
                f"all {self._max_channels} connections are busy",
                retry_after_ms=1000,
            )
        oldest = min(idle, key=lambda endpoint: self._channels[endpoint].last_used_s)
        self._channels.pop(oldest).close()
