"""Parts on their way into the store, several side by side: one stream alone fills no network."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from daemons.core.errors import McError, Unavailable
from daemons.store.object.catalog import Part
from daemons.store.object.manifest import Entry, data_key, encode_manifest
from daemons.store.object.queue import Pending
from daemons.store.object.shared import Shared
from daemons.store.segment.copy_workers import CopyWorkers

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Upload:
    """A part that nobody knows yet, made of `puts`. `error` once it has failed."""

    part: Part
    body: memoryview
    entries: list[Entry]
    puts: list[Pending] = field(default_factory=list)
    error: McError | None = None


class Uploader:
    """`run` is the writer's; it waits for all, as each call to the store ends in time."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._workers = CopyWorkers(shared.settings.uploads - 1, shared.settings.uploads)

    def run(self, uploads: Sequence[Upload]) -> None:
        """What arrives of one that fails is garbage."""
        waiting: list[Future[None]] = []
        for upload in uploads[1:]:
            done: Future[None] = Future()
            try:
                self._workers.submit(upload.part.name, lambda u=upload, d=done: self._work(u, d))  # type: ignore[misc]
            except McError as error:
                upload.error = error
            else:
                waiting.append(done)
        self._put(uploads[0])
        for done in waiting:
            done.result()

    def close(self) -> None:
        """Those that hang are left behind."""
        self._workers.close(timeout_s=0.0)

    def _work(self, upload: Upload, done: "Future[None]") -> None:
        try:
            self._put(upload)
        finally:
            done.set_result(None)

    def _put(self, upload: Upload) -> None:
        shared, part = self._shared, upload.part
        try:
            shared.bucket.put(data_key(part.name), upload.body)
            manifest = encode_manifest(part.name, upload.entries)
            shared.bucket.put(part.keys[0], memoryview(manifest))
        except Unavailable as error:
            upload.error = error
            with shared.lock:
                shared.discard(part)
        else:
            with shared.lock:
                shared.counters.parts_written += 1
