"""What a client of the object store is made of: memory to put from, sessions, look-ups, readers; and how it ends."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from daemons.client.identity import open_client_identity
from daemons.client.objects.fetch import ObjectFetch
from daemons.client.objects.format import packed_text
from daemons.client.objects.lookup import ObjectLookup
from daemons.client.objects.reader import ObjectReader
from daemons.client.objects.sessions import Sessions
from daemons.client.objects.source import SourceMemory
from daemons.client.objects.verbs import Name, ObjectVerbs
from daemons.config.forms import is_endpoint
from daemons.core.errors import ConfigError, McError, Rejected
from daemons.protocol.address import address_of
from daemons.protocol.segment import RegionRef
from daemons.transfer import TransferEngine, as_bytes
from daemons.transfer.buffers import Buffer

_MAX_WORKERS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """As Store's."""

    namespace: Name = b""
    timeout_s: float = 5.0
    bind_host: str = "127.0.0.1"
    engine: TransferEngine | None = None
    secret: bytes | None = None
    key_file: str | Path | None = None
    num_threads: int | None = None


class ObjectClient:
    """Thread safe; `close` it once nothing is under way."""

    def __init__(self, master: str, options: ClientOptions) -> None:
        namespace = packed_text(options.namespace, "a namespace")
        if len(namespace) > 256:
            raise Rejected(f"a namespace has at most 256 bytes, not {len(namespace)}")
        if not is_endpoint(address_of(master)):
            raise ConfigError(f"{master!r} is no master's endpoint; write tcp://HOST:PORT")
        identity = open_client_identity(options.key_file) if "#" in master else None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._own_engine: TransferEngine | None = None
        engine = options.engine
        if engine is None:
            self._directory = tempfile.TemporaryDirectory(prefix="mcs-")
            try:
                self._own_engine = engine = TransferEngine(
                    bind_host=options.bind_host,
                    unix_dir=Path(self._directory.name),
                    secret=options.secret,
                )
            except McError:
                self._directory.cleanup()
                raise
        self.sessions = Sessions(master, identity)
        lookup = ObjectLookup(self.sessions, namespace, has_secret=options.secret is not None)
        self.memory = SourceMemory(engine)
        self.num_workers = options.num_threads or min(_MAX_WORKERS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="mc-store")
        pool = self._pool if self.num_workers > 1 else None
        fetch = ObjectFetch(ObjectReader(engine), lookup, pool, self.num_workers)
        self.verbs = ObjectVerbs(namespace, options.timeout_s, self.memory, lookup, fetch)
        self._is_closed = False

    def register(self, memory: Buffer) -> RegionRef:
        return self.memory.register(memory)

    def deregister(self, region: RegionRef) -> None:
        self.memory.deregister(region)

    def refuse_unregistered(self, buffer: Buffer) -> None:
        """Raises Rejected."""
        if self.memory.find(as_bytes(buffer)) is None:
            raise Rejected(
                "put_from takes memory inside a buffer that was registered with `register`"
            )

    def close(self) -> None:
        """A second time it does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pool.shutdown()
        self.sessions.close()
        self.memory.close()
        if self._own_engine is not None:
            self._own_engine.close()
        if self._directory is not None:
            self._directory.cleanup()
