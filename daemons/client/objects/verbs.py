"""What the object store's clients can be asked to do, as steps: one place for what Store and AsyncStore both offer."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from daemons.client.objects.await_sealed import await_heard, await_sealed
from daemons.client.objects.cache import Found
from daemons.client.objects.fetch import ObjectFetch, Value
from daemons.client.objects.format import Kind, ValueType, as_name, pairs_of, type_of
from daemons.client.objects.lookup import ObjectLookup
from daemons.client.objects.parts import Item
from daemons.client.objects.source import SourceMemory
from daemons.client.objects.steps import (
    ReplyType,
    Steps,
    ask_master,
    ask_patiently,
    work,
)
from daemons.client.objects.values import on_host
from daemons.client.objects.writer import ObjectPut
from daemons.core.errors import McError, NotFound, Rejected
from daemons.core.ids import BlockHash, NodeId
from daemons.core.units import MIB
from daemons.protocol.base import Message
from daemons.protocol.block import MAX_REPLICAS, BlockFilter
from daemons.protocol.name_hash import MAX_NAME_BYTES, chunk_key
from daemons.protocol.objects import (
    NAME_STATES,
    DeleteNames,
    DeleteNamesReply,
    ExistNames,
    ExistNamesReply,
    ListNames,
    ListNamesReply,
    NamespaceStat,
    NameState,
    StatNames,
    StatNamesReply,
)
from daemons.protocol.pin import PinBlocks, PinBlocksReply, PinLevel
from daemons.protocol.replication import MoveBlocks, ReplicateBlocks, ReplicateReply
from daemons.transfer import as_bytes
from daemons.transfer.buffers import Buffer

Name = bytes | str
"""1 to 256 bytes; a str is its UTF-8."""

_MAX_NAMES: Final = 10_000
"""In one message; longer calls send several."""
_PAGE_NAMES: Final = 1000
_LEAST_S: Final = 0.05
"""Who has waited for all of its time asks once all the same."""
_PUT_BYTES_PER_S: Final = 100 * MIB
"""What a put is given time for, beside its timeout."""


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What is known of one object. `dtype` and `shape` are those of the array that was put, empty for bytes."""

    name: bytes
    value_bytes: int
    version: int
    num_chunks: int
    nodes: tuple[NodeId, ...]
    kind: Kind
    dtype: str
    shape: tuple[int, ...]


class Wish(NamedTuple):
    """How values are put."""

    replaces: bool = False
    like: ValueType | None = None
    replicas: int = 0
    min_sealed: int = 1


class ObjectVerbs:
    """Thread safe. A timeout of None is the client's own."""

    def __init__(
        self,
        namespace: bytes,
        timeout_s: float,
        memory: SourceMemory,
        lookup: ObjectLookup,
        fetch: ObjectFetch,
    ) -> None:
        self.namespace = namespace
        self.timeout_s = timeout_s
        self.fetch = fetch
        self._memory = memory
        self._lookup = lookup
        self._cache = lookup.cache

    def wait_s(self, timeout_s: float | None) -> float:
        return self.timeout_s if timeout_s is None else timeout_s

    def put(
        self, values: Sequence[tuple[Name, Buffer]], timeout_s: float | None, wish: Wish
    ) -> Steps[list[int | McError]]:
        """A version or an error for each."""
        items = _items(values, wish)
        wait_s = self.wait_s(timeout_s)
        if timeout_s is None:
            wait_s += sum(item.value.nbytes for item in items) / _PUT_BYTES_PER_S
        for start in range(0, len(items), _MAX_NAMES):
            part, deadline_s = items[start : start + _MAX_NAMES], time.monotonic() + wait_s
            yield from ObjectPut(
                self._memory,
                self.namespace,
                replaces=wish.replaces,
                is_same=self.fetch.is_same,
                timeout_s=wait_s,
            ).run(part)
            if wish.min_sealed > 1:
                yield from await_sealed(part, wish.min_sealed, deadline_s=deadline_s)
        return [self._outcome(item) for item in items]

    def get(
        self,
        names: Sequence[Name],
        timeout_s: float | None,
        targets: Sequence[Any] | None = None,
        types: Sequence[ValueType] | None = None,
    ) -> Steps[list[Value]]:
        return self.fetch.values(names_of(names), targets, self.wait_s(timeout_s), types)

    def exists(self, names: Sequence[Name]) -> Steps[list[NameState]]:
        packed = names_of(names)
        states = b""
        for part in _pages(packed):
            message = ExistNames(namespace=self.namespace, names=part)
            states += (yield from self._ask(message, ExistNamesReply)).states
        if states.count(1) == len(states):
            return [NameState.PRESENT] * len(states)
        is_own = self._cache.is_own
        return [
            NAME_STATES[state] if state or not is_own(name) else NameState.PRESENT
            for name, state in zip(packed, states, strict=True)
        ]

    def delete(self, names: Sequence[Name]) -> Steps[list[bool]]:
        """Asked once: whoever asks twice is told that it was not there."""
        was_there: list[bool] = []
        for part in _pages(names_of(names)):
            message = DeleteNames(namespace=self.namespace, names=part)
            reply = yield from ask_master(message, DeleteNamesReply, self.timeout_s)
            for name, state in zip(part, reply.states, strict=True):
                was_there.append(bool(state) or self._cache.is_own(name))
                self._cache.forget(name)
        return was_there

    def stat(self, names: Sequence[Name]) -> Steps[list[ObjectStat | McError | None]]:
        packed, deadline_s = names_of(names), self._deadline_s()
        yield from await_heard(self._cache, packed, self.timeout_s)
        found = yield from self._lookup.find(packed, _left_s(deadline_s), is_fresh=True)
        return (
            yield from work(
                lambda: [
                    self._describe(name, each, deadline_s) if isinstance(each, Found) else each
                    for name, each in zip(packed, found, strict=True)
                ]
            )
        )

    def blocks_of(self, name: Name) -> Steps[Sequence[BlockHash]]:
        """Raises NotFound."""
        return self._blocks_of(name, self._deadline_s())

    def pin(self, name: Name, level: PinLevel, ttl_s: float = 1.0) -> Steps[None]:
        deadline_s = self._deadline_s()
        hashes = yield from self._blocks_of(name, deadline_s)
        message = PinBlocks(hashes=[*hashes], level=level, ttl_ms=round(1000 * ttl_s))
        yield from ask_patiently(message, PinBlocksReply, _left_s(deadline_s))

    def replicate(self, name: Name, count: int, prefer: Sequence[NodeId]) -> Steps[int]:
        deadline_s = self._deadline_s()
        chosen = BlockFilter(hashes=tuple((yield from self._blocks_of(name, deadline_s))))
        message = ReplicateBlocks(filter=chosen, count=count, prefer=[*prefer])
        return (yield from ask_patiently(message, ReplicateReply, _left_s(deadline_s))).num_left

    def move(self, name: Name, to: NodeId) -> Steps[int]:
        deadline_s = self._deadline_s()
        chosen = BlockFilter(hashes=tuple((yield from self._blocks_of(name, deadline_s))))
        message = MoveBlocks(filter=chosen, to=to)
        return (yield from ask_patiently(message, ReplicateReply, _left_s(deadline_s))).num_left

    def namespaces(self) -> Steps[Sequence[NamespaceStat]]:
        return (yield from self._ask(StatNames(), StatNamesReply)).namespaces

    def page(self, prefix: bytes, cursor: int) -> Steps[ListNamesReply]:
        """Some of the names that begin so."""
        deadline_s = self._deadline_s()
        if not cursor:
            yield from await_heard(self._cache, None, self.timeout_s)
        message = ListNames(
            namespace=self.namespace, prefix=prefix, cursor=cursor, limit=_PAGE_NAMES
        )
        return (yield from ask_patiently(message, ListNamesReply, _left_s(deadline_s)))

    def _blocks_of(self, name: Name, deadline_s: float) -> Steps[Sequence[BlockHash]]:
        packed = as_name(name)
        yield from await_heard(self._cache, [packed], self.timeout_s)
        [found] = yield from self._lookup.find([packed], _left_s(deadline_s), is_fresh=True)
        if isinstance(found, McError):
            raise found
        if found is None:
            raise NotFound(f"no object {packed!r} in namespace {self.namespace!r}")
        at, there = found.places[0].location, found
        footer = yield from work(lambda: self.fetch.footer(there, _left_s(deadline_s)))
        return [
            at.hash,
            *(chunk_key(at.hash, at.version, index) for index in range(footer.num_chunks)),
        ]

    def _deadline_s(self) -> float:
        return time.monotonic() + self.timeout_s

    def _ask(self, message: Message, reply_type: type[ReplyType]) -> Steps[ReplyType]:
        return ask_patiently(message, reply_type, self.timeout_s)

    def _outcome(self, item: Item) -> int | McError:
        outcome = item.outcome
        assert outcome is not None, "a put gives every item an outcome"
        if isinstance(outcome, McError):
            self._cache.drop(item.name)
            return outcome
        self._lookup.remember(item.name, outcome, item.value.nbytes, item.chunks)
        return outcome.version

    def _describe(
        self, name: bytes, found: Found, deadline_s: float
    ) -> ObjectStat | McError | None:
        try:
            footer = self.fetch.footer(found, _left_s(deadline_s))
        except McError as error:
            return error
        return ObjectStat(
            name=name,
            value_bytes=footer.value_bytes,
            version=found.places[0].location.version,
            num_chunks=footer.num_chunks,
            nodes=tuple(place.location.node for place in found.places),
            kind=footer.type.kind,
            dtype=footer.type.dtype,
            shape=footer.type.shape,
        )


def _left_s(deadline_s: float) -> float:
    return max(_LEAST_S, deadline_s - time.monotonic())


def names_of(names: Sequence[Name]) -> Sequence[bytes]:
    """A thousand at a time are common: bytes of possible lengths are taken as they are."""
    if isinstance(names, bytes | str):
        raise Rejected("several names are given as a list of them, not as one text")
    if (
        set(map(type, names)) == {bytes}
        and 0 < min(lengths := set(map(len, names))) <= max(lengths) <= MAX_NAME_BYTES
    ):
        return list(names)  # type: ignore[arg-type]  # all bytes
    return [as_name(name) for name in names]


def _items(values: Sequence[tuple[Name, Buffer]], wish: Wish) -> list[Item]:
    if not 0 <= wish.replicas <= MAX_REPLICAS:
        raise Rejected(f"{wish.replicas} replicas: a value has 1 to {MAX_REPLICAS}")
    if not 1 <= wish.min_sealed <= max(1, wish.replicas):
        raise Rejected(
            f"min_sealed is 1 to the number of replicas that is asked for with it, not {wish.min_sealed}"
        )
    items = [
        Item(
            as_name(name),
            as_bytes(on_host(value)),
            wish.like or type_of(value),
            wanted=wish.replicas,
        )
        for name, value in pairs_of(values, "value")
    ]
    if len({item.name for item in items}) < len(items):
        raise Rejected("a name is there twice in one call")
    return items


def _pages(names: Sequence[bytes]) -> Iterator[Any]:
    for start in range(0, len(names), _MAX_NAMES):
        yield names[start : start + _MAX_NAMES]
