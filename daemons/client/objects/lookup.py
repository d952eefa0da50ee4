"""Finding objects and their chunks: the cache first, then the master, one message for all names that are not there."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

from daemons.client.node_health import suspicion
from daemons.client.objects.cache import Found, ObjectCache
from daemons.client.objects.format import Footer
from daemons.client.objects.reader import Place
from daemons.client.objects.sessions import Sessions
from daemons.client.objects.steps import Pause, Steps, ask_master, ask_nodes, ask_patiently
from daemons.core.errors import McError, Unavailable
from daemons.core.ids import BlockHash, new_stage_id
from daemons.protocol.base import Ok
from daemons.protocol.block import BadReplica, BlockLocation
from daemons.protocol.lookup import Locate, LocateReply
from daemons.protocol.name_hash import chunk_key
from daemons.protocol.objects import NAME_STATES, LocateNames, LocateNamesReply, NameState
from daemons.protocol.segment import Grant, RegionGrant
from daemons.protocol.tiers import Stage, StageReply, Unstage
from daemons.store.segment.runs import in_memory, runs_of
from daemons.transfer.capability import MAX_RANGES

LEASE_S: Final = 10.0
TRUST_S: Final = 1.0
"""In which a get of a place that is known asks nobody. A node that is stopped cannot void what was replaced elsewhere:
for so long its reader does not notice.
"""
_SUSPICION_S: Final = 0.05
_RETRY_S: Final = 0.05
_RETRIES_S: Final = (0.005, 0.01, 0.02)
"""At first: nodes report what they sealed within milliseconds."""
_PAGE_CHUNKS: Final = 4096


class ObjectLookup:
    """Thread safe. `has_secret`: this process opens nodes' memory itself and needs no grants."""

    def __init__(self, sessions: Sessions, namespace: bytes, *, has_secret: bool) -> None:
        self.cache = ObjectCache()
        self._sessions = sessions
        self._namespace = namespace
        self._wants_grants = not has_secret
        self._needs_grants: bool | None = None if self._wants_grants else False
        """Whether the cluster has a secret that this process does not know; None until the master has named a place."""

    def find_now(
        self, names: Sequence[bytes], timeout_s: float, *, is_fresh: bool = False
    ) -> list[Found | McError | None]:
        """`find`, on this thread."""
        return self._sessions.run(self.find(names, timeout_s, is_fresh=is_fresh))

    def find(
        self, names: Sequence[bytes], timeout_s: float, *, is_fresh: bool = False
    ) -> Steps[list[Found | McError | None]]:
        """None is a miss that is sure. `is_fresh`: not from the cache."""
        found: list[Found | McError | None] = [
            None if is_fresh else self.cache.get(name) for name in names
        ]
        missing = [index for index, each in enumerate(found) if each is None]
        if missing:
            asked = yield from self._ask([names[index] for index in missing], timeout_s)
            for index, each in zip(missing, asked, strict=True):
                found[index] = each
        return found

    def find_chunks(
        self, found: Found, footer: Footer, indexes: Sequence[int], timeout_s: float
    ) -> dict[int, list[Place]]:
        """Of the object that `found` is, in its version; without those that are nowhere."""
        object_at = found.places[0].location
        wanted = [index for index in indexes if index not in found.chunks]
        keys = [chunk_key(object_at.hash, object_at.version, index) for index in wanted]
        for start in range(0, len(wanted), _PAGE_CHUNKS):
            part = keys[start : start + _PAGE_CHUNKS]
            for index, places in zip(
                wanted[start : start + _PAGE_CHUNKS], self._ask_chunks(part, timeout_s), strict=True
            ):
                found.chunks[index] = places
        return {index: found.chunks[index] for index in indexes if found.chunks[index]}

    @contextlib.contextmanager
    def staged(self, place: Place, timeout_s: float) -> Iterator[Place]:
        """Where it can be read: a replica on a node's SSD is brought into its memory while this lasts."""
        at = place.location
        if at.tier == "dram":
            yield place
            return
        stage_id = new_stage_id()
        hold_ms = int(1000 * timeout_s) + 1000
        message = Stage(
            stage_id=stage_id,
            hashes=[at.hash],
            hold_ms=hold_ms,
            wants_grants=self._wants_grants,
        )
        [reply] = self._sessions.run(ask_nodes([(at.control, message)], timeout_s))
        if isinstance(reply, McError):
            raise reply
        if not isinstance(reply, StageReply) or reply.locations[0] is None:
            why = reply.why if isinstance(reply, StageReply) else "it answers nonsense"
            raise Unavailable(f"{at.node} did not bring it from its {at.tier} tier: {why}")
        try:
            yield Place(reply.locations[0], reply.grants[0] if reply.grants else None)
        finally:
            self._sessions.run(ask_nodes([(at.control, Unstage(stage_id=stage_id))], 1.0))

    def opened(self, name: bytes, sealed: BlockLocation) -> Place:
        """Of what the master named without a grant, what this process can read. Raises Unavailable."""
        if self._needs_grants is False:
            return Place(sealed)
        [found] = self.find_now([name], 2.0, is_fresh=True)
        if not isinstance(found, Found) or found.places[0].location.version != sealed.version:
            raise Unavailable(f"{name!r} is just being replaced or deleted")
        return found.places[0]

    def report_bad(self, location: BlockLocation, why: str) -> None:
        """The node looks for itself before it drops anything; nobody waits for that."""
        message = BadReplica(hash=location.hash, node=location.node, why=why)
        with contextlib.suppress(McError):
            self._sessions.run(ask_master(message, Ok, 1.0))

    def report_suspect(self, location: BlockLocation, why: str) -> None:
        """Others are preferred until the node's next beat; a master that does not answer now is not waited for."""
        with contextlib.suppress(McError):
            self._sessions.run(ask_master(suspicion(location, why), Ok, _SUSPICION_S))

    def remember(
        self,
        name: bytes,
        location: BlockLocation,
        value_bytes: int,
        chunks: Sequence[BlockLocation | None] = (),
    ) -> None:
        """What a node said when it sealed our put."""
        known = {i: [Place(chunk)] for i, chunk in enumerate(chunks) if chunk is not None}
        # Only the version, where it takes a grant to read it. Tried while that is not known: it is refused at once.
        until_s = time.monotonic() + (0.0 if self._needs_grants else TRUST_S)
        self.cache.put_own(name, Found([Place(location)], value_bytes, until_s, True, known))

    def _ask(self, names: list[bytes], timeout_s: float) -> Steps[list[Found | McError | None]]:
        deadline_s = time.monotonic() + timeout_s
        pauses = iter(_RETRIES_S)
        message = LocateNames(
            namespace=self._namespace,
            names=names,
            lease_ms=int(LEASE_S * 1000),
            wants_grants=self._wants_grants,
        )
        while True:
            left_s = max(0.05, deadline_s - time.monotonic())
            reply = yield from ask_patiently(message, LocateNamesReply, left_s)
            states = [NAME_STATES[state] for state in reply.states]
            is_waiting = any(
                (state == "rebuilding" and not replicas)
                or self._is_overtaken(name, replicas)
                or (
                    self._needs_grants is not False
                    and state is NameState.ABSENT
                    and self.cache.is_own(name)
                )
                for name, state, replicas in zip(names, states, reply.replicas, strict=True)
            )
            pause_s = next(pauses, _RETRY_S)
            if not is_waiting or time.monotonic() + pause_s >= deadline_s:
                break
            yield Pause(pause_s)
        return self._take(names, states, reply)

    def _take(
        self, names: list[bytes], states: Sequence[NameState], reply: LocateNamesReply
    ) -> list[Found | McError | None]:
        until_s = time.monotonic() + TRUST_S
        if self._needs_grants is None and any(reply.replicas):
            self._needs_grants = bool(reply.grants)
        places = _places(reply.replicas, reply.grants)
        results: list[Found | McError | None] = []
        for index, name in enumerate(names):
            if self._is_overtaken(name, reply.replicas[index]):
                results.append(
                    Unavailable(
                        f"{name!r} was put by this client as a version that the master has not heard of yet: its node "
                        "is away or slow; read it again once it is back",
                        retry_after_ms=500,
                    )
                )
            elif places[index]:
                found = Found(places[index], reply.value_bytes[index], until_s)
                self.cache.put(name, found)
                results.append(found)
            elif states[index] in (NameState.ABSENT, NameState.PRESENT):
                results.append(None)  # present, and just being evicted
            elif states[index] is NameState.UNREACHABLE:
                results.append(Unavailable(f"{name!r} is held by nodes that are away"))
            else:
                results.append(
                    Unavailable(
                        f"{name!r} is not known yet: the master is rebuilding its directory",
                        retry_after_ms=500,
                    )
                )
        return results

    def _is_overtaken(self, name: bytes, replicas: Sequence[BlockLocation]) -> bool:
        """The master still names what a put of our own has replaced: its node has not reported that."""
        return bool(replicas) and replicas[0].version < self.cache.floor_of(name)

    def _ask_chunks(self, keys: list[BlockHash], timeout_s: float) -> list[list[Place]]:
        message = Locate(hashes=keys, lease_ms=int(LEASE_S * 1000), wants_grants=self._wants_grants)
        reply = self._sessions.run(ask_patiently(message, LocateReply, timeout_s))
        return _places(reply.unpack(), reply.grants)


def _places(
    replicas: Sequence[list[BlockLocation]], grants: Sequence[RegionGrant]
) -> list[list[Place]]:
    """With the grant of each that is in memory: they come for the runs of those in order, so many to a grant."""
    if not grants:
        return [[Place(each) for each in of_name] for of_name in replicas]
    locations = in_memory(replicas)
    by_region: dict[tuple[int, int], list[Grant]] = {}
    for each in grants:
        by_region.setdefault((each.epoch, each.region_id), []).append(each.grant)
    seen: dict[tuple[int, int], int] = {}
    opened: dict[int, Grant] = {}
    for run in runs_of(locations):
        key = (run.region.address.epoch, run.region.region_id)
        number = seen.get(key, 0)
        seen[key] = number + 1
        of_region = by_region.get(key, [])
        if number // MAX_RANGES < len(of_region):
            grant = of_region[number // MAX_RANGES]
            granted = locations[run.first : run.first + run.num_blocks]
            opened.update((id(at), grant) for at in granted)
    return [[Place(each, opened.get(id(each))) for each in of_name] for of_name in replicas]
