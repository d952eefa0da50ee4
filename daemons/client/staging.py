"""Asking nodes to bring blocks of their lower tiers into DRAM, and letting go of them after the read.

For a loop there is Stager, for a thread that may wait `staged`. What cannot be staged in time is a miss: the blocks
before it are used.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile

from daemons.client.channel_pool import ChannelPool
from daemons.core.errors import McError
from daemons.core.ids import StageId, new_stage_id
from daemons.protocol.block import BlockLocation
from daemons.protocol.messages import Reply
from daemons.protocol.tiers import Stage, StageReply, Unstage
from daemons.rpc import Identity, SyncClient

_UNSTAGE_TIMEOUT_S = 2.0
OnStaged = Callable[[list[BlockLocation]], object]


def needs_staging(locations: Sequence[BlockLocation]) -> bool:
    """Whether any of these cannot be read where it is."""
    return any(location.tier != "dram" for location in locations)


@contextmanager
def staged(
    locations: Sequence[BlockLocation], *, timeout_s: float, identity: Identity | None = None
) -> Iterator[list[BlockLocation]]:
    """Where the leading ones that can be read lie, until the block ends; one node after the other is asked."""
    placed: list[BlockLocation | None] = list(locations)
    held: list[tuple[SyncClient, StageId]] = []
    try:
        for control, indexes in _by_control(locations).items():
            client, stage_id = SyncClient(control, timeout_s, identity), new_stage_id()
            held.append((client, stage_id))
            asked = [locations[index] for index in indexes]
            _place(placed, indexes, _ask_now(client, _message(stage_id, asked, timeout_s)))
        yield _leading(placed)
    finally:
        for client, stage_id in held:
            with client, suppress(McError):
                client.request(Unstage(stage_id=stage_id), _UNSTAGE_TIMEOUT_S)


class Stager:
    """One per process. Loop thread only."""

    def __init__(self, channels: ChannelPool) -> None:
        self._channels = channels

    def stage(
        self, locations: Sequence[BlockLocation], *, timeout_s: float, on_staged: OnStaged
    ) -> "Staging":
        """`on_staged` comes exactly once, with where the leading blocks that can be read lie now."""
        return Staging(self._channels, locations, timeout_s, on_staged)


class Staging:
    """Some blocks that are being staged, or are held. `release` when they were read."""

    def __init__(
        self,
        channels: ChannelPool,
        locations: Sequence[BlockLocation],
        timeout_s: float,
        on_staged: OnStaged,
    ) -> None:
        self._channels = channels
        self._locations: list[BlockLocation | None] = list(locations)
        self._on_staged = on_staged
        self._indexes = _by_control(locations)
        self._ids: dict[str, StageId] = {}
        self._num_left = len(self._indexes)
        for control, indexes in list(self._indexes.items()):
            self._ask(control, [locations[index] for index in indexes], timeout_s)
        if not self._indexes:
            on_staged(list(locations))

    def release(self) -> None:
        """Best effort: what is not let go ends by itself."""
        ids, self._ids = self._ids, {}
        for control, stage_id in ids.items():
            try:
                self._channels.get(control).request(
                    Unstage(stage_id=stage_id),
                    timeout_s=_UNSTAGE_TIMEOUT_S,
                    on_reply=lambda _: None,
                )
            except McError:
                continue

    def _ask(self, control: str, wanted: Sequence[BlockLocation], timeout_s: float) -> None:
        stage_id = self._ids[control] = new_stage_id()
        message = _message(stage_id, wanted, timeout_s)
        try:
            self._channels.get(control).request(
                message, timeout_s=timeout_s, on_reply=lambda reply: self._on_reply(control, reply)
            )
        except McError as error:
            self._on_reply(control, error)

    def _on_reply(self, control: str, reply: Reply | McError) -> None:
        _place(self._locations, self._indexes[control], reply)
        self._num_left -= 1
        if self._num_left == 0:
            self._on_staged(_leading(self._locations))


def _by_control(locations: Sequence[BlockLocation]) -> dict[str, list[int]]:
    """The indexes of those that need staging, by the node to ask."""
    indexes: dict[str, list[int]] = {}
    for index, location in enumerate(locations):
        if location.tier != "dram":
            indexes.setdefault(location.control, []).append(index)
    return indexes


def _message(stage_id: StageId, wanted: Sequence[BlockLocation], timeout_s: float) -> Stage:
    hashes = [location.hash for location in wanted]
    return Stage(stage_id=stage_id, hashes=hashes, hold_ms=int(2000 * timeout_s))


def _ask_now(client: SyncClient, message: Stage) -> Reply | McError:
    try:
        return client.request(message)
    except McError as error:
        return error


def _place(
    locations: list[BlockLocation | None], indexes: Sequence[int], reply: Reply | McError
) -> None:
    """Put what a node answered in the place of what it was asked for: the very same bytes, or None."""
    found: Sequence[BlockLocation | None] = [None] * len(indexes)
    if isinstance(reply, StageReply) and len(reply.locations) == len(indexes):
        found = reply.locations
    for index, location in zip(indexes, found, strict=True):
        asked = locations[index]
        assert asked is not None
        names = (asked.hash, asked.seal_checksum)
        is_same = location is not None and (location.hash, location.seal_checksum) == names
        locations[index] = location if is_same else None


def _leading(locations: Sequence[BlockLocation | None]) -> list[BlockLocation]:
    return [each for each in takewhile(lambda each: each is not None, locations) if each]
