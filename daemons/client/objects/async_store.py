"""The object store's client in asyncio: the verbs of Store, awaited, with the same results and errors.

Requests to the master and to nodes go over the asyncio loop itself; bytes are copied and verified by a few threads.
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from daemons.client.default_master import default_key_file, default_master
from daemons.client.objects.async_sessions import AsyncSessions
from daemons.client.objects.client import ClientOptions, ObjectClient
from daemons.client.objects.format import ValueType, as_name, packed_text, pairs_of, type_of
from daemons.client.objects.steps import Result, Steps
from daemons.client.objects.store import as_sizes, as_values, one, refuse_range
from daemons.client.objects.values import as_array, targets_of
from daemons.client.objects.verbs import Name, ObjectStat, Wish
from daemons.core.errors import McError
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.address import address_of
from daemons.protocol.objects import ListedName, NamespaceStat, NameState
from daemons.protocol.segment import RegionRef
from daemons.transfer import TransferEngine
from daemons.transfer.buffers import Buffer


class AsyncStore:
    """One asyncio loop's: it opens with `async with`, or with its first call. Any number of calls may be under way.

    Each call has Store's deadlines. One that is cancelled ends at once, and leaves no trace of a put; only where the
    caller's own memory is read into, it first waits until nothing writes there any more.
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
        self._sessions: AsyncSessions | None = None
        self.namespace = self._verbs.namespace
        self.timeout_s = timeout_s

    # -- puts ----------------------------------------------------------------------------------------------------

    async def put(
        self,
        name: Name,
        value: Buffer,
        *,
        timeout_s: float | None = None,
        like: ValueType | None = None,
        replicas: int = 0,
        min_sealed: int = 1,
    ) -> int:
        """See Store. `value` must stay as it is until this returns, or was cancelled."""
        wish = Wish(False, like, replicas, min_sealed)
        return one(await self._run(self._verbs.put([(name, value)], timeout_s, wish)))

    async def replace(
        self,
        name: Name,
        value: Buffer,
        *,
        timeout_s: float | None = None,
        like: ValueType | None = None,
        replicas: int = 0,
        min_sealed: int = 1,
    ) -> int:
        wish = Wish(True, like, replicas, min_sealed)
        return one(await self._run(self._verbs.put([(name, value)], timeout_s, wish)))

    async def put_many(
        self,
        values: Sequence[tuple[Name, Buffer]],
        *,
        timeout_s: float | None = None,
        replicas: int = 0,
        min_sealed: int = 1,
    ) -> list[int | McError]:
        wish = Wish(False, None, replicas, min_sealed)
        return await self._run(self._verbs.put(values, timeout_s, wish))

    async def replace_many(
        self,
        values: Sequence[tuple[Name, Buffer]],
        *,
        timeout_s: float | None = None,
        replicas: int = 0,
        min_sealed: int = 1,
    ) -> list[int | McError]:
        wish = Wish(True, None, replicas, min_sealed)
        return await self._run(self._verbs.put(values, timeout_s, wish))

    async def put_from(self, name: Name, buffer: Buffer, *, timeout_s: float | None = None) -> int:
        self._client.refuse_unregistered(buffer)
        return await self.put(name, buffer, timeout_s=timeout_s)

    def register(self, memory: Buffer) -> RegionRef:
        """Asks nobody, and so is not awaited; as `deregister`."""
        return self._client.register(memory)

    def deregister(self, region: RegionRef) -> None:
        self._client.deregister(region)

    # -- gets ----------------------------------------------------------------------------------------------------

    async def get(self, name: Name, *, timeout_s: float | None = None) -> bytes | None:
        return one(await self.get_many([name], timeout_s=timeout_s))

    async def get_many(
        self, names: Sequence[Name], *, timeout_s: float | None = None
    ) -> list[bytes | McError | None]:
        return as_values(await self._run(self._verbs.get(names, timeout_s)))

    async def get_into(
        self, name: Name, target: Buffer, *, timeout_s: float | None = None
    ) -> int | None:
        return one(await self.get_into_many([(name, target)], timeout_s=timeout_s))

    async def get_into_many(
        self, wanted: Sequence[tuple[Name, Buffer]], *, timeout_s: float | None = None
    ) -> list[int | McError | None]:
        wanted = pairs_of(wanted, "target")
        arrays, copies = targets_of(wanted)
        names, types = [name for name, _ in wanted], [type_of(target) for _, target in wanted]
        found = await self._run(self._verbs.get(names, timeout_s, arrays, types))
        for copy in copies:
            copy()
        return as_sizes(found)

    async def get_range(
        self, name: Name, offset: int, length: int, *, timeout_s: float | None = None
    ) -> bytes | None:
        refuse_range(offset, length)
        wait_s = self._verbs.wait_s(timeout_s)
        found = await self._run(self._verbs.fetch.part(as_name(name), offset, length, wait_s))
        return None if found is None else found.tobytes()

    async def get_array(self, name: Name, *, timeout_s: float | None = None) -> Any:
        wait_s = self._verbs.wait_s(timeout_s)
        fetched = await self._run(self._verbs.fetch.typed(as_name(name), wait_s))
        return None if fetched is None else as_array(*fetched)

    # -- names ---------------------------------------------------------------------------------------------------

    async def exists(self, name: Name) -> NameState:
        return (await self.exists_many([name]))[0]

    async def exists_many(self, names: Sequence[Name]) -> list[NameState]:
        return await self._run(self._verbs.exists(names))

    async def delete(self, name: Name) -> bool:
        return (await self.delete_many([name]))[0]

    async def delete_many(self, names: Sequence[Name]) -> list[bool]:
        return await self._run(self._verbs.delete(names))

    async def stat(self, name: Name) -> ObjectStat | None:
        return one(await self.stat_many([name]))

    async def stat_many(self, names: Sequence[Name]) -> list[ObjectStat | McError | None]:
        return await self._run(self._verbs.stat(names))

    # -- where they stay -----------------------------------------------------------------------------------------

    async def blocks_of(self, name: Name) -> Sequence[BlockHash]:
        return await self._run(self._verbs.blocks_of(name))

    async def pin(self, name: Name, *, ttl_s: float = 1800.0, is_hard: bool = False) -> None:
        await self._run(self._verbs.pin(name, "hard" if is_hard else "soft", ttl_s))

    async def unpin(self, name: Name) -> None:
        await self._run(self._verbs.pin(name, "none"))

    async def replicate(self, name: Name, count: int, *, prefer: Sequence[NodeId] = ()) -> int:
        return await self._run(self._verbs.replicate(name, count, prefer))

    async def move(self, name: Name, to: NodeId) -> int:
        return await self._run(self._verbs.move(name, to))

    async def namespaces(self) -> Sequence[NamespaceStat]:
        return await self._run(self._verbs.namespaces())

    # -- life ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """A second time it does nothing. No call may be under way."""
        if self._sessions is not None:
            await self._sessions.close()
            self._sessions = None
        self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def list(self, prefix: Name = b"") -> AsyncIterator[ListedName]:
        """`async for`, in no order."""
        start = packed_text(prefix, "a prefix")
        cursor: int | None = 0
        while cursor is not None:
            page = await self._run(self._verbs.page(start, cursor))
            for name in page.names:
                yield name
            cursor = page.cursor

    async def _run(self, steps: Steps[Result]) -> Result:
        if self._sessions is None:
            self._sessions = AsyncSessions(self._client.sessions, self._client.num_workers)
        return await self._sessions.run(steps)


__all__ = ["AsyncStore"]
