"""The object store's client: values under names in a namespace, put and read without a copy where memory is registered.

A get gives the value's bytes, b"" for an empty value, None for a miss that is sure, and raises McError for what is
neither; batch calls give one of these per name. A reader sees a whole version or a miss, never a mixture. Longer than
most files, for each verb of the public API is here, for one name and for many.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np

from daemons.client.identity import open_client_identity
from daemons.client.object_cache import Found
from daemons.client.object_fetch import ObjectFetch
from daemons.client.object_format import Kind, ValueType, as_name, packed_text, type_of
from daemons.client.object_lookup import ObjectLookup
from daemons.client.object_reader import ObjectReader, value_of
from daemons.client.object_sealed import await_sealed
from daemons.client.object_source import SourceMemory
from daemons.client.object_values import as_array, on_host, targets_of
from daemons.client.object_writer import Item, ObjectPut
from daemons.client.sessions import ReplyType, Sessions
from daemons.core.errors import McError, NotFound, Rejected
from daemons.core.ids import BlockHash, NodeId
from daemons.core.units import MIB
from daemons.protocol.address import address_of
from daemons.protocol.base import Message
from daemons.protocol.block import MAX_REPLICAS, BlockFilter
from daemons.protocol.name_hash import MAX_NAME_BYTES, chunk_key
from daemons.protocol.objects import (
    NAME_STATES,
    DeleteNames,
    DeleteNamesReply,
    ExistNames,
    ExistNamesReply,
    ListedName,
    ListNames,
    ListNamesReply,
    NamespaceStat,
    NameState,
    StatNames,
    StatNamesReply,
)
from daemons.protocol.pin import PinBlocks, PinBlocksReply, PinLevel
from daemons.protocol.replication import MoveBlocks, ReplicateBlocks, ReplicateReply
from daemons.protocol.segment import RegionRef
from daemons.transfer import TransferEngine, as_bytes
from daemons.transfer.buffers import Buffer

Result = TypeVar("Result")
Name = bytes | str
"""1 to 256 bytes; a str is its UTF-8."""

_MAX_NAMES: Final = 10_000
"""In one message; longer calls send several."""
_PAGE_NAMES: Final = 1000
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


class _Wish(NamedTuple):
    """How values are put."""

    replaces: bool
    like: ValueType | None
    replicas: int
    min_sealed: int


class Store:
    """Thread safe. One per process is enough; close it, or use it in a `with`.

    `engine`: one of the caller's, whose registered regions are then known to it already. Without it the store has an
    engine of its own that listens at `bind_host`, where cache nodes of other hosts must reach it. `secret` is the
    cluster's, for daemons. `key_file` is needed where the master has keys: `master` is its endpoint then, with # and
    its public key.
    """

    def __init__(  # noqa: PLR0913  # settings of a client, by keyword
        self,
        master: str = "tcp://127.0.0.1:7700",
        *,
        namespace: Name = b"",
        timeout_s: float = 5.0,
        bind_host: str = "127.0.0.1",
        engine: TransferEngine | None = None,
        secret: bytes | None = None,
        key_file: Path | None = None,
        num_threads: int | None = None,
    ) -> None:
        self.master = address_of(master)
        self.namespace = packed_text(namespace, "a namespace")
        if len(self.namespace) > 256:
            raise Rejected(f"a namespace has at most 256 bytes, not {len(self.namespace)}")
        self.timeout_s = timeout_s
        self._directory = None
        self._own_engine: TransferEngine | None = None
        if engine is None:
            self._directory = tempfile.TemporaryDirectory(prefix="mcs-")
            self._own_engine = engine = TransferEngine(
                bind_host=bind_host, unix_dir=Path(self._directory.name), secret=secret
            )
        identity = open_client_identity(key_file) if "#" in master else None
        self._sessions = Sessions(master, identity)
        self._lookup = ObjectLookup(self._sessions, self.namespace, has_secret=secret is not None)
        self._memory = SourceMemory(engine)
        workers = num_threads or min(4, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="mc-store")
        self._fetch = ObjectFetch(
            ObjectReader(engine), self._lookup, self._pool if workers > 1 else None, workers
        )
        self._is_closed = False

    # -- puts ----------------------------------------------------------------------------------------------------

    def put(
        self,
        name: Name,
        value: Buffer,
        *,
        timeout_s: float | None = None,
        like: ValueType | None = None,
        replicas: int = 0,
        min_sealed: int = 1,
    ) -> int:
        """The version. The same bytes again succeed and move nothing; other bytes raise Conflict.

        `like` is what to remember of its type in place of what `value` is. `replicas` is how many hosts it should be
        on, 0 what the pool wants; it returns when it is on `min_sealed` of them, the others follow. Raises Unavailable
        when the time is up before.
        """
        return _one(self._put([(name, value)], timeout_s, _Wish(False, like, replicas, min_sealed)))

    def replace(
        self,
        name: Name,
        value: Buffer,
        *,
        timeout_s: float | None = None,
        like: ValueType | None = None,
        replicas: int = 0,
        min_sealed: int = 1,
    ) -> int:
        """Put in place of whatever is there, or of nothing; the new version is above every earlier one."""
        return _one(self._put([(name, value)], timeout_s, _Wish(True, like, replicas, min_sealed)))

    def put_many(
        self,
        values: Sequence[tuple[Name, Buffer]],
        *,
        timeout_s: float | None = None,
        replicas: int = 0,
        min_sealed: int = 1,
    ) -> list[int | McError]:
        """A version or an error for each, in order."""
        return self._put(values, timeout_s, _Wish(False, None, replicas, min_sealed))

    def replace_many(
        self,
        values: Sequence[tuple[Name, Buffer]],
        *,
        timeout_s: float | None = None,
        replicas: int = 0,
        min_sealed: int = 1,
    ) -> list[int | McError]:
        return self._put(values, timeout_s, _Wish(True, None, replicas, min_sealed))

    def put_from(self, name: Name, buffer: Buffer, *, timeout_s: float | None = None) -> int:
        """`put` of registered memory: the node reads it where it lies. Raises Rejected for other memory."""
        if self._memory.find(as_bytes(buffer)) is None:
            raise Rejected(
                "put_from takes memory inside a buffer that was registered with `register`"
            )
        return self.put(name, buffer, timeout_s=timeout_s)

    def register(self, memory: Buffer) -> RegionRef:
        """Values inside it are put without a copy. It stays the caller's, until `deregister`."""
        return self._memory.register(memory)

    def deregister(self, region: RegionRef) -> None:
        self._memory.deregister(region)

    # -- gets ----------------------------------------------------------------------------------------------------

    def get(self, name: Name, *, timeout_s: float | None = None) -> bytes | None:
        return _one(self.get_many([name], timeout_s=timeout_s))

    def get_many(
        self, names: Sequence[Name], *, timeout_s: float | None = None
    ) -> list[bytes | McError | None]:
        found = self._fetch.values(_names(names), None, self._wait_s(timeout_s))
        return [value_of(each) if isinstance(each, np.ndarray) else each for each in found]

    def get_into(self, name: Name, target: Buffer, *, timeout_s: float | None = None) -> int | None:
        """Bytes that were read, or None. The target must be as large as the value, a typed one of the same type."""
        return _one(self.get_into_many([(name, target)], timeout_s=timeout_s))

    def get_into_many(
        self, wanted: Sequence[tuple[Name, Buffer]], *, timeout_s: float | None = None
    ) -> list[int | McError | None]:
        """What a target holds is undefined where the result is no number."""
        arrays, copies = targets_of([target for _, target in wanted])
        names = _names([name for name, _ in wanted])
        types = [type_of(target) for _, target in wanted]
        found = self._fetch.values(names, arrays, self._wait_s(timeout_s), types)
        for copy in copies:
            copy()
        return [each.nbytes if isinstance(each, np.ndarray) else each for each in found]

    def get_range(
        self, name: Name, offset: int, length: int, *, timeout_s: float | None = None
    ) -> bytes | None:
        """Up to `length` bytes from `offset`, fewer where the value ends; only what holds them is read."""
        if offset < 0 or length < 0:
            raise Rejected(f"a range of {length} bytes at {offset}")
        found = self._fetch.part(as_name(name), offset, length, self._wait_s(timeout_s))
        return None if found is None else found.tobytes()

    def get_array(self, name: Name, *, timeout_s: float | None = None) -> Any:
        """The array or tensor that was put, with its dtype and shape; None is a miss.

        Raises Rejected for plain bytes, and for a torch tensor where the process has not imported torch.
        """
        fetched = self._fetch.typed(as_name(name), self._wait_s(timeout_s))
        return None if fetched is None else as_array(*fetched)

    # -- names ---------------------------------------------------------------------------------------------------

    def exists(self, name: Name) -> NameState:
        """absent is sure; unreachable: only nodes that are suspect or away hold it."""
        return self.exists_many([name])[0]

    def exists_many(self, names: Sequence[Name]) -> list[NameState]:
        packed = _names(names)
        states = b"".join(
            self._ask(ExistNames(namespace=self.namespace, names=part), ExistNamesReply).states
            for part in _pages(packed)
        )
        if states.count(1) == len(states):
            return ["present"] * len(states)
        is_own = self._lookup.cache.is_own
        return [
            NAME_STATES[state] if state or not is_own(name) else "present"
            for name, state in zip(packed, states, strict=True)
        ]

    def delete(self, name: Name) -> bool:
        """Whether it was there. When it returns no node that is away can bring it back."""
        return self.delete_many([name])[0]

    def delete_many(self, names: Sequence[Name]) -> list[bool]:
        """Raises Unavailable when too few nodes answered for it to be sure; deleting again is fine."""
        packed = _names(names)
        was_there: list[bool] = []
        for part in _pages(packed):
            message = DeleteNames(namespace=self.namespace, names=part)
            states = self._ask(message, DeleteNamesReply).states
            for name, state in zip(part, states, strict=True):
                was_there.append(bool(state) or self._lookup.cache.is_own(name))
                self._lookup.cache.forget(name)
        return was_there

    def stat(self, name: Name) -> ObjectStat | None:
        return _one(self.stat_many([name]))

    def stat_many(self, names: Sequence[Name]) -> list[ObjectStat | McError | None]:
        packed = _names(names)
        self._lookup.cache.wait_reported()
        found = self._lookup.find(packed, self.timeout_s, is_fresh=True)
        return [
            self._describe(name, each) if isinstance(each, Found) else each
            for name, each in zip(packed, found, strict=True)
        ]

    # -- where they stay -----------------------------------------------------------------------------------------

    def blocks_of(self, name: Name) -> Sequence[BlockHash]:
        """The blocks that its current version is made of, by which verbs for blocks know it. Raises NotFound."""
        packed = as_name(name)
        self._lookup.cache.wait_reported()
        [found] = self._lookup.find([packed], self.timeout_s, is_fresh=True)
        if isinstance(found, McError):
            raise found
        if found is None:
            raise NotFound(f"no object {packed!r} in namespace {self.namespace!r}")
        at = found.places[0].location
        num_chunks = self._fetch.footer(found, self.timeout_s).num_chunks
        return [at.hash, *(chunk_key(at.hash, at.version, index) for index in range(num_chunks))]

    def pin(self, name: Name, *, ttl_s: float = 1800.0, is_hard: bool = False) -> None:
        """Keep this version from eviction for so long: soft, after everything else goes; hard, at all."""
        level: PinLevel = "hard" if is_hard else "soft"
        message = PinBlocks(hashes=[*self.blocks_of(name)], level=level, ttl_ms=round(1000 * ttl_s))
        self._ask(message, PinBlocksReply)

    def unpin(self, name: Name) -> None:
        self._ask(PinBlocks(hashes=[*self.blocks_of(name)], level="none"), PinBlocksReply)

    def replicate(self, name: Name, count: int, *, prefer: Sequence[NodeId] = ()) -> int:
        """Have it on so many hosts, these nodes first; returns how many of its blocks still lack a copy.

        Copies are made in the background: say it again to see.
        """
        chosen = BlockFilter(hashes=tuple(self.blocks_of(name)))
        message = ReplicateBlocks(filter=chosen, count=count, prefer=[*prefer])
        return self._ask(message, ReplicateReply).num_left

    def move(self, name: Name, to: NodeId) -> int:
        """Copy it to a node and free it elsewhere; returns how many of its blocks are still on their way."""
        message = MoveBlocks(filter=BlockFilter(hashes=tuple(self.blocks_of(name))), to=to)
        return self._ask(message, ReplicateReply).num_left

    def namespaces(self) -> Sequence[NamespaceStat]:
        """Those of the whole cluster that hold objects."""
        return self._ask(StatNames(), StatNamesReply).namespaces

    # -- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """A second time it does nothing. No call may be under way."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pool.shutdown()
        self._sessions.close()
        self._memory.close()
        if self._own_engine is not None:
            self._own_engine.close()
        if self._directory is not None:
            self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _put(
        self,
        values: Sequence[tuple[Name, Buffer]],
        timeout_s: float | None,
        wish: _Wish,
    ) -> list[int | McError]:
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
            for name, value in values
        ]
        if len({item.name for item in items}) < len(items):
            raise Rejected("a name is there twice in one call")
        num_bytes = sum(item.value.nbytes for item in items)
        wait_s = self._wait_s(timeout_s)
        if timeout_s is None:
            wait_s += num_bytes / _PUT_BYTES_PER_S
        for start in range(0, len(items), _MAX_NAMES):
            part, deadline_s = items[start : start + _MAX_NAMES], time.monotonic() + wait_s
            with self._sessions.borrow() as session:
                ObjectPut(
                    session,
                    self._memory,
                    self.namespace,
                    replaces=wish.replaces,
                    is_same=self._fetch.is_same,
                    timeout_s=wait_s,
                ).run(part)
                if wish.min_sealed > 1:
                    await_sealed(session, part, wish.min_sealed, deadline_s=deadline_s)
        return [self._outcome(item) for item in items]

    def _outcome(self, item: Item) -> int | McError:
        outcome = item.outcome
        assert outcome is not None, "a put gives every item an outcome"
        if isinstance(outcome, McError):
            self._lookup.cache.drop(item.name)
            return outcome
        self._lookup.remember(item.name, outcome, item.value.nbytes, item.chunks)
        return outcome.version

    def _describe(self, name: bytes, found: Found) -> ObjectStat | McError | None:
        try:
            footer = self._fetch.footer(found, self.timeout_s)
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

    def _ask(self, message: Message, reply_type: type[ReplyType]) -> ReplyType:
        with self._sessions.borrow() as session:
            if isinstance(message, DeleteNames):
                return session.ask_master(message, reply_type, self.timeout_s)
            return session.ask_patiently(message, reply_type, self.timeout_s)

    def _wait_s(self, timeout_s: float | None) -> float:
        return self.timeout_s if timeout_s is None else timeout_s

    def list(self, prefix: Name = b"") -> Iterator[ListedName]:
        """Of the names that begin so, in no order; names that come or go meanwhile may be missed or not."""
        start = packed_text(prefix, "a prefix")
        self._lookup.cache.wait_reported()
        cursor: int | None = 0
        while cursor is not None:
            message = ListNames(
                namespace=self.namespace, prefix=start, cursor=cursor, limit=_PAGE_NAMES
            )
            page = self._ask(message, ListNamesReply)
            yield from page.names
            cursor = page.cursor


def _one(results: Sequence[Result | McError]) -> Result:
    [result] = results
    if isinstance(result, McError):
        raise result
    return result


def _names(names: Sequence[Name]) -> Sequence[bytes]:
    """A thousand at a time are common: bytes of possible lengths are taken as they are."""
    lengths = set(map(len, names))
    if set(map(type, names)) == {bytes} and 0 < min(lengths) <= max(lengths) <= MAX_NAME_BYTES:
        return list(names)  # type: ignore[arg-type]  # all bytes
    return [as_name(name) for name in names]


def _pages(names: Sequence[bytes]) -> Iterator[Any]:
    for start in range(0, len(names), _MAX_NAMES):
        yield names[start : start + _MAX_NAMES]


__all__ = ["Kind", "Name", "ObjectStat", "Store", "ValueType"]
