"""Waiting until what was put is sealed on several hosts: the master is asked once, and answers when it is."""

import time
from collections.abc import Sequence
from typing import Final

from daemons.client.objects.cache import ObjectCache
from daemons.client.objects.parts import Item
from daemons.client.objects.steps import Steps, ask_patiently
from daemons.core.errors import McError, Unavailable
from daemons.core.ids import BlockHash
from daemons.protocol.replication import MAX_AWAITED, AwaitReplicas, AwaitReplicasReply

_HEARD_S: Final = 2.0
_HEARD_AT_ONCE: Final = 1000


def await_sealed(items: Sequence[Item], min_sealed: int, *, deadline_s: float) -> Steps[None]:
    """An item that is on fewer hosts at the deadline has Unavailable as its outcome; its value stays readable."""
    wanted = {
        location.hash: location.version
        for item in items
        if item.outcome is not None and not isinstance(item.outcome, McError)
        for location in (item.outcome, *item.chunks)
        if location is not None
    }
    counts: dict[BlockHash, int] = {}
    hashes = list(wanted)
    try:
        for start in range(0, len(hashes), MAX_AWAITED):
            part = hashes[start : start + MAX_AWAITED]
            counts |= yield from _ask(part, wanted, min_sealed, deadline_s)
        why = ""
    except McError as error:
        why = f": {error.message}"
    for item in items:
        if item.outcome is None or isinstance(item.outcome, McError):
            continue
        places = [item.outcome, *(chunk for chunk in item.chunks if chunk is not None)]
        lowest = min(counts.get(place.hash, 1) for place in places)
        if lowest < min_sealed:
            item.outcome = Unavailable(
                f"{item.name[:40]!r} is sealed, but on {lowest} of {min_sealed} hosts so far{why}; "
                "put it again to wait on, or delete it"
            )


def _ask(
    hashes: list[BlockHash],
    versions: dict[BlockHash, int],
    count: int,
    deadline_s: float,
) -> Steps[dict[BlockHash, int]]:
    message = AwaitReplicas(
        hashes=hashes, versions=[versions[each] for each in hashes], count=count
    )
    left_s = max(0.05, deadline_s - time.monotonic())
    reply = yield from ask_patiently(message, AwaitReplicasReply, left_s)
    return dict(zip(hashes, reply.counts, strict=False))


def await_heard(cache: ObjectCache, names: Sequence[bytes] | None, timeout_s: float) -> Steps[None]:
    """Until the master knows of our own puts of these names, or of all: nodes report a moment after they sealed.

    Nobody waits longer than that for one that is gone again, or whose node went with its report.
    """
    waiting = cache.unheard(names)
    versions, deadline_s = {each.key: each.version for each in waiting}, time.monotonic() + _HEARD_S
    hashes = list(versions)
    for start in range(0, len(hashes), _HEARD_AT_ONCE):
        part = hashes[start : start + _HEARD_AT_ONCE]
        try:
            yield from _ask(part, versions, 1, min(deadline_s, time.monotonic() + timeout_s))
        except McError:
            return  # whoever asks the master next hears why
    cache.heard(waiting)
