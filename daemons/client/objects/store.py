"""The object store's client: values under names in a namespace, put and read without a copy where memory is registered.

A get gives the value's bytes, b"" for an empty value, None for a miss that is sure, and raises McError for what is
neither; batch calls give one of these per name. A reader sees a whole version or a miss, never a mixture.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from daemons.client.default_master import default_key_file, default_master
from daemons.client.objects.client import ClientOptions, ObjectClient
from daemons.client.objects.fetch import Value
from daemons.client.objects.format import Kind, ValueType, as_name, packed_text, pairs_of, type_of
from daemons.client.objects.reader import value_of
from daemons.client.objects.steps import Result, Steps
from daemons.client.objects.values import as_array, targets_of
from daemons.client.objects.verbs import Name, ObjectStat, Wish
from daemons.core.errors import McError, Rejected
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.address import address_of
from daemons.protocol.objects import ListedName, NamespaceStat, NameState
from daemons.protocol.segment import RegionRef
from daemons.transfer import TransferEngine
from daemons.transfer.buffers import Buffer

_One = TypeVar("_One")


class Store:
    """Thread safe. One per process is enough; close it, or use it in a `with`.

    Without `master` it is that of $MCCTL_ENDPOINT, else of the cluster of `mcctl cluster up`, else loopback's.

    `engine`: one of the caller's, whose registered regions are then known to it already. Without it the store has an
    engine of its own that listens at `bind_host`, where cache nodes of other hosts must reach it. `secret` is the
    cluster's, for daemons. `key_file` is needed where the master has keys: `master` is its endpoint then, with # and
    its public key.
    """

    def __init__(  # noqa: PLR0913  # settings of a client, by keyword
        self,
        master: str | None = None,
        *,
        namespace: Name = b"",
        timeout_s: float = 5.0,
        bind_host: str = "127.0.0.1",
        engine: TransferEngine | None = None,
        secret: bytes | None = None,
        key_file: str | Path | None = None,
        num_threads: int | None = None,
    ) -> None:
        if master is None:
            master, key_file = default_master(), key_file or default_key_file()
        self.master = address_of(master)
        self._client = ObjectClient(
            master,
            ClientOptions(
                namespace=namespace,
                timeout_s=timeout_s,
                bind_host=bind_host,
                engine=engine,
                secret=secret,
                key_file=key_file,
                num_threads=num_threads,
            ),
        )
        self._verbs = self._client.verbs
        self.namespace = self._verbs.namespace
        self.timeout_s = timeout_s

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
        return one(self._put([(name, value)], timeout_s, Wish(False, like, replicas, min_sealed)))

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
        return one(self._put([(name, value)], timeout_s, Wish(True, like, replicas, min_sealed)))

    def put_many(
        self,
        values: Sequence[tuple[Name, Buffer]],
        *,
        timeout_s: float | None = None,
        replicas: int = 0,
        min_sealed: int = 1,
    ) -> list[int | McError]:
        """A version or an error for each, in order."""
        return self._run(
            self._verbs.put(values, timeout_s, Wish(False, None, replicas, min_sealed))
        )

    def replace_many(
        self,
        values: Sequence[tuple[Name, Buffer]],
        *,
        timeout_s: float | None = None,
        replicas: int = 0,
        min_sealed: int = 1,
    ) -> list[int | McError]:
        return self._run(self._verbs.put(values, timeout_s, Wish(True, None, replicas, min_sealed)))

    def put_from(self, name: Name, buffer: Buffer, *, timeout_s: float | None = None) -> int:
        """`put` of registered memory: the node reads it where it lies. Raises Rejected for other memory."""
        self._client.refuse_unregistered(buffer)
        return self.put(name, buffer, timeout_s=timeout_s)

    def register(self, memory: Buffer) -> RegionRef:
        """Values inside it are put without a copy. It stays the caller's, until `deregister`."""
        return self._client.register(memory)

    def deregister(self, region: RegionRef) -> None:
        self._client.deregister(region)

    # -- gets ----------------------------------------------------------------------------------------------------

    def get(self, name: Name, *, timeout_s: float | None = None) -> bytes | None:
        return one(self.get_many([name], timeout_s=timeout_s))

    def get_many(
        self, names: Sequence[Name], *, timeout_s: float | None = None
    ) -> list[bytes | McError | None]:
        return as_values(self._run(self._verbs.get(names, timeout_s)))

    def get_into(self, name: Name, target: Buffer, *, timeout_s: float | None = None) -> int | None:
        """Bytes that were read, or None. The target must be as large as the value, a typed one of the same type."""
        return one(self.get_into_many([(name, target)], timeout_s=timeout_s))

    def get_into_many(
        self, wanted: Sequence[tuple[Name, Buffer]], *, timeout_s: float | None = None
    ) -> list[int | McError | None]:
        """What a target holds is undefined where the result is no number."""
        wanted = pairs_of(wanted, "target")
        arrays, copies = targets_of(wanted)
        names, types = [name for name, _ in wanted], [type_of(target) for _, target in wanted]
        found = self._run(self._verbs.get(names, timeout_s, arrays, types))
        for copy in copies:
            copy()
        return as_sizes(found)

    def get_range(
        self, name: Name, offset: int, length: int, *, timeout_s: float | None = None
    ) -> bytes | None:
        """Up to `length` bytes from `offset`, fewer where the value ends; only what holds them is read."""
        refuse_range(offset, length)
        wait_s = self._verbs.wait_s(timeout_s)
        found = self._run(self._verbs.fetch.part(as_name(name), offset, length, wait_s))
        return None if found is None else found.tobytes()

    def get_array(self, name: Name, *, timeout_s: float | None = None) -> Any:
        """The array or tensor that was put, with its dtype and shape; None is a miss.

        Raises Rejected for plain bytes, and for a torch tensor where the process has not imported torch.
        """
        wait_s = self._verbs.wait_s(timeout_s)
        fetched = self._run(self._verbs.fetch.typed(as_name(name), wait_s))
        return None if fetched is None else as_array(*fetched)

    # -- names ---------------------------------------------------------------------------------------------------

    def exists(self, name: Name) -> NameState:
        """True where it is present. Absent is sure; unreachable: only nodes that are suspect or away hold it."""
        return self.exists_many([name])[0]

    def exists_many(self, names: Sequence[Name]) -> list[NameState]:
        return self._run(self._verbs.exists(names))

    def delete(self, name: Name) -> bool:
        """Whether it was there. When it returns no node that is away can bring it back."""
        return self.delete_many([name])[0]

    def delete_many(self, names: Sequence[Name]) -> list[bool]:
        """Raises Unavailable when too few nodes answered for it to be sure; deleting again is fine."""
        return self._run(self._verbs.delete(names))

    def stat(self, name: Name) -> ObjectStat | None:
        return one(self.stat_many([name]))

    def stat_many(self, names: Sequence[Name]) -> list[ObjectStat | McError | None]:
        return self._run(self._verbs.stat(names))

    # -- where they stay -----------------------------------------------------------------------------------------

    def blocks_of(self, name: Name) -> Sequence[BlockHash]:
        """The blocks that its current version is made of, by which verbs for blocks know it. Raises NotFound."""
        return self._run(self._verbs.blocks_of(name))

    def pin(self, name: Name, *, ttl_s: float = 1800.0, is_hard: bool = False) -> None:
        """Keep this version from eviction for so long: soft, after everything else goes; hard, at all."""
        self._run(self._verbs.pin(name, "hard" if is_hard else "soft", ttl_s))

    def unpin(self, name: Name) -> None:
        self._run(self._verbs.pin(name, "none"))

    def replicate(self, name: Name, count: int, *, prefer: Sequence[NodeId] = ()) -> int:
        """Have it on so many hosts, these nodes first; returns how many of its blocks still lack a copy.

        Copies are made in the background: say it again to see.
        """
        return self._run(self._verbs.replicate(name, count, prefer))

    def move(self, name: Name, to: NodeId) -> int:
        """Copy it to a node and free it elsewhere; returns how many of its blocks are still on their way."""
        return self._run(self._verbs.move(name, to))

    def namespaces(self) -> Sequence[NamespaceStat]:
        """Those of the whole cluster that hold objects."""
        return self._run(self._verbs.namespaces())

    # -- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """A second time it does nothing. No call may be under way."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def list(self, prefix: Name = b"") -> Iterator[ListedName]:
        """Of the names that begin so, in no order; names that come or go meanwhile may be missed or not."""
        start = packed_text(prefix, "a prefix")
        cursor: int | None = 0
        while cursor is not None:
            page = self._run(self._verbs.page(start, cursor))
            yield from page.names
            cursor = page.cursor

    # -- inside --------------------------------------------------------------------------------------------------

    def _put(
        self, values: Sequence[tuple[Name, Buffer]], timeout_s: float | None, wish: Wish
    ) -> Sequence[int | McError]:
        return self._run(self._verbs.put(values, timeout_s, wish))

    def _run(self, steps: Steps[Result]) -> Result:
        return self._client.sessions.run(steps)


def one(results: Sequence[_One | McError]) -> _One:
    """Of a call about one name."""
    [result] = results
    if isinstance(result, McError):
        raise result
    return result


def as_values(found: Sequence[Value]) -> list[bytes | McError | None]:
    return [value_of(each) if isinstance(each, np.ndarray) else each for each in found]


def as_sizes(found: Sequence[Value]) -> list[int | McError | None]:
    return [each.nbytes if isinstance(each, np.ndarray) else each for each in found]


def refuse_range(offset: int, length: int) -> None:
    """Raises Rejected."""
    if offset < 0 or length < 0:
        raise Rejected(f"a range of {length} bytes at {offset}")


__all__ = ["Kind", "Name", "ObjectStat", "Store", "ValueType"]
