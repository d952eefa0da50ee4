"""Getting values: located, read from the best replica, from the next when that fails, in parallel where it is worth it.

A place from the cache that fails is looked up once more before anything counts as a miss; one that the master has
just named, and that does not verify, is reported to it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final, TypeVar

import numpy as np

from daemons.client.node_health import PATIENT_S, NodeHealth
from daemons.client.objects.cache import Found
from daemons.client.objects.format import (
    PIECE_BYTES,
    Footer,
    ValueType,
    pack_footer,
    pack_manifest,
    parse_manifest,
)
from daemons.client.objects.lookup import ObjectLookup
from daemons.client.objects.parts import Item
from daemons.client.objects.reader import ObjectReader, Place
from daemons.client.objects.steps import Steps, work
from daemons.client.objects.together import FAILOVER_BYTES_PER_S, FAILOVER_S, Together
from daemons.core.errors import McError, Rejected, TransferError, Unavailable
from daemons.core.units import MIB
from daemons.protocol.block import BlockLocation
from daemons.protocol.name_hash import chunk_key
from daemons.store.segment.seal import BadSeal, Trailer, payload_checksums, seal
from daemons.transfer import ByteArray

_PARALLEL_BYTES: Final = 4 * MIB
"""Below it handing work to other threads costs more than it saves."""
_WINDOW_CHUNKS: Final = 256
_ATTEMPTS: Final = 3
_REPORTED_S: Final = 0.01
"""In which the master hears what a node has sealed."""

Result = TypeVar("Result")
Value = ByteArray | McError | None


class ObjectFetch:
    """Thread safe."""

    def __init__(
        self,
        reader: ObjectReader,
        lookup: ObjectLookup,
        pool: ThreadPoolExecutor | None,
        num_workers: int,
    ) -> None:
        self._reader = reader
        self._lookup = lookup
        self._pool = pool
        self._health = NodeHealth(on_suspect=lookup.report_suspect)
        self._together = Together(reader.engine, self._health)
        self._num_workers = num_workers
        self._thread = threading.local()

    def values(
        self,
        names: Sequence[bytes],
        targets: Sequence[ByteArray] | None,
        timeout_s: float,
        types: Sequence[ValueType] | None = None,
    ) -> Steps[list[Value]]:
        """The bytes of each, in its target where there are targets; a miss; or an error."""
        deadline_s = time.monotonic() + timeout_s
        found = yield from self._lookup.find(names, timeout_s)
        return (
            yield from work(
                lambda: self._values(names, found, targets, deadline_s, types),
                writes_to_caller=targets is not None,
            )
        )

    def _values(
        self,
        names: Sequence[bytes],
        found: Sequence[Found | McError | None],
        targets: Sequence[ByteArray] | None,
        deadline_s: float,
        types: Sequence[ValueType] | None,
    ) -> list[Value]:
        results: list[Value] = [None] * len(names)
        done: set[int] = set()

        def fetch_together(indexes: Sequence[int]) -> None:
            if len(indexes) < 2:
                return
            for index, footer, body in self._together.read(indexes, found, targets, deadline_s):
                if types is None or _is_type(footer, types[index]):
                    results[index] = body
                    done.add(index)

        def fetch(index: int) -> None:
            at = found[index]
            if index in done:
                return
            if not isinstance(at, Found):
                results[index] = at
                return
            try:
                fetched = self._value(
                    names[index], at, None if targets is None else targets[index], deadline_s
                )
                if fetched is not None and types is not None:
                    _check_type(fetched[0], types[index])
                results[index] = None if fetched is None else fetched[1]
            except McError as error:
                results[index] = error

        total = sum(at.value_bytes for at in found if isinstance(at, Found))
        self._run(range(len(names)), fetch, total if len(names) > 1 else 0, fetch_together)
        return results

    def typed(self, name: bytes, timeout_s: float) -> Steps[tuple[ByteArray, ValueType] | None]:
        deadline_s = time.monotonic() + timeout_s
        [found] = yield from self._lookup.find([name], timeout_s)
        if not isinstance(found, Found):
            _raise(found)
            return None
        at = found
        fetched = yield from work(lambda: self._value(name, at, None, deadline_s))
        return None if fetched is None else (fetched[1], fetched[0].type)

    def part(
        self, name: bytes, start: int, length: int, timeout_s: float
    ) -> Steps[ByteArray | None]:
        deadline_s = time.monotonic() + timeout_s
        [found] = yield from self._lookup.find([name], timeout_s)
        if not isinstance(found, Found):
            _raise(found)
            return None
        first = found
        return (
            yield from work(
                lambda: self._again(
                    name, first, deadline_s, lambda at: self._part(at, start, length, deadline_s)
                )
            )
        )

    def footer(self, found: Found, timeout_s: float) -> Footer:
        deadline_s = time.monotonic() + timeout_s
        return self._failing_over(
            found.places,
            deadline_s,
            0,
            lambda place, left_s: self._reader.read_footer(place, left_s),
        )[0]

    def is_same(self, sealed: BlockLocation, item: Item) -> bool:
        """Whether what is sealed there is this value: its checksums are, and so its seals; no bytes are read."""
        named = self._lookup.opened(item.name, sealed)
        with self._lookup.staged(named, 2.0) as place:
            return self._is_same(place, item)

    def _is_same(self, place: Place, item: Item) -> bool:
        sealed = place.location
        footer, trailer = self._reader.read_footer(place, 2.0)
        if (footer.value_bytes, footer.type) != (item.value.nbytes, item.type):
            return False
        view = item.value.data
        if not footer.chunk_bytes:
            whole = memoryview(
                bytes(view[len(view) // trailer.piece_bytes * trailer.piece_bytes :])
            )
            pieces = payload_checksums(view[: len(view) - len(whole)], 0, trailer.piece_bytes)
            ending = memoryview(bytes(whole) + pack_footer(footer))
            pieces += payload_checksums(ending, 0, trailer.piece_bytes)
            return tuple(pieces) == trailer.checksums
        checksums = [
            _chunk_seal(sealed, index, view[start : start + footer.chunk_bytes])
            for index, start in enumerate(range(0, len(view), footer.chunk_bytes))
        ]
        _, manifest = self._reader.read_object(place, None, 2.0)
        return manifest.tobytes() == pack_manifest(checksums)

    # -- inside --------------------------------------------------------------------------------------------------

    def _value(
        self, name: bytes, found: Found, target: ByteArray | None, deadline_s: float
    ) -> tuple[Footer, ByteArray] | None:
        return self._again(name, found, deadline_s, lambda at: self._read(at, target, deadline_s))

    def _again(
        self, name: bytes, found: Found, deadline_s: float, read: Callable[[Found], Result]
    ) -> Result | None:
        """Again where the master places it now, as it may just have been replaced; None for what stays bad.

        Not once the time is up: of a batch there may be thousands left.
        """
        is_cached = found.is_cached
        for attempt in range(_ATTEMPTS):
            try:
                return read(found)
            except (TransferError, Unavailable) as failure:
                error = failure
                self._lookup.cache.drop(name)
                is_bad = isinstance(error, BadSeal)
                if attempt + 1 == _ATTEMPTS or not (is_bad or is_cached):
                    if not is_bad:
                        raise
                    self._lookup.report_bad(found.places[0].location, error.message)
                    return None
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise Unavailable(f"it was not read in time: {error.message}") from error
            if not is_cached:
                time.sleep(_REPORTED_S)
            [fresh] = self._lookup.find_now([name], min(2.0, left_s), is_fresh=True)
            if not isinstance(fresh, Found):
                _raise(fresh)
                if not is_bad and self._lookup.cache.is_own(name):
                    raise error  # its node is away, and the master has not heard of it yet
                self._lookup.cache.forget(name)
                return None
            found, is_cached = fresh, False
        raise AssertionError("the last attempt returns or raises")

    def _read(
        self, found: Found, target: ByteArray | None, deadline_s: float
    ) -> tuple[Footer, ByteArray]:
        if target is not None and target.nbytes != found.value_bytes:
            raise Rejected(f"{found.value_bytes} bytes do not fill a target of {target.nbytes}")
        footer, body = self._failing_over(
            found.places,
            deadline_s,
            found.places[0].location.length,
            lambda place, left_s: self._reader.read_object(place, target, left_s),
            may_ask=found.is_cached,
        )
        if not footer.chunk_bytes:
            return footer, body
        value = np.empty(footer.value_bytes, np.uint8) if target is None else target
        self._read_chunks(found, (footer, body), (0, footer.value_bytes), value, deadline_s)
        return footer, value

    def _part(self, found: Found, start: int, length: int, deadline_s: float) -> ByteArray:
        end = min(start + length, found.value_bytes)
        target = np.empty(max(0, end - start), np.uint8)
        if not target.nbytes:
            return target
        location = found.places[0].location
        is_inline = location.length > found.value_bytes
        if is_inline:
            self._failing_over(
                found.places,
                deadline_s,
                target.nbytes,
                lambda place, left_s: self._reader.read_range(place, start, target, left_s),
                may_ask=found.is_cached,
            )
            return target
        read = self._failing_over(
            found.places,
            deadline_s,
            location.length,
            lambda place, left_s: self._reader.read_object(place, None, left_s),
            may_ask=found.is_cached,
        )
        self._read_chunks(found, read, (start, end), target, deadline_s)
        return target

    def _read_chunks(
        self,
        found: Found,
        read: tuple[Footer, ByteArray],
        wanted: tuple[int, int],
        target: ByteArray,
        deadline_s: float,
    ) -> None:
        """Bytes [start, end) of the value. Raises BadSeal where a chunk is nowhere."""
        footer, (start, end) = read[0], wanted
        checksums = parse_manifest(read[1].tobytes(), footer)
        size = footer.chunk_bytes
        places: dict[int, list[Place]] = {}

        def fetch(index: int) -> None:
            good = [p for p in places[index] if p.location.seal_checksum == checksums[index]]
            first, last = index * size, index * size + footer.chunk_length(index)
            into = target[max(start, first) - start : min(end, last) - start]
            is_whole = into.nbytes == last - first
            read = self._reader.read_chunk if is_whole else None

            def once(place: Place, left_s: float) -> None:
                if read is not None:
                    read(place, into, left_s)
                else:
                    self._reader.read_range(place, max(start, first) - first, into, left_s)

            self._failing_over(good, deadline_s, last - first, once)

        first_chunk, behind = start // size, -(-end // size)
        for begin in range(first_chunk, behind, _WINDOW_CHUNKS):
            # Located, and so leased, only shortly before they are read: a large value takes longer than a lease.
            window = range(begin, min(begin + _WINDOW_CHUNKS, behind))
            left_s = max(0.05, deadline_s - time.monotonic())
            places = self._lookup.find_chunks(found, footer, window, left_s)
            if len(places) < len(window):
                raise BadSeal(f"{len(window) - len(places)} of {len(window)} chunks are gone")
            self._run(window, fetch, len(window) * size)

    def _failing_over(
        self,
        places: Sequence[Place],
        deadline_s: float,
        num_bytes: int,
        read: Callable[[Place, float], Result],
        *,
        may_ask: bool = False,
    ) -> Result:
        """From the first place that gives it, nodes in doubt last. Raises what the last one did.

        The last one gets what time is left, or PATIENT_S where it is in doubt; with `may_ask` no more than the others,
        for the master may know of a better one.
        """
        error: McError = BadSeal("there is no replica that the manifest names")
        doubted = [place for place in places if self._health.is_suspect(place.location)]
        ranked = [place for place in places if place not in doubted] + doubted
        if len(doubted) == len(places) and (may_ask or time.monotonic() >= deadline_s):
            raise Unavailable("all the nodes that are known to have it failed a moment ago")
        for index, place in enumerate(ranked):
            left_s = deadline_s - time.monotonic()
            if index + 1 == len(ranked) and place in doubted:
                left_s = min(left_s, PATIENT_S)
            if index + 1 < len(ranked) or may_ask:
                left_s = min(left_s, FAILOVER_S + num_bytes / FAILOVER_BYTES_PER_S)
            left_s = max(0.05, left_s)
            try:
                if place.location.tier == "dram":
                    result = read(place, left_s)
                else:
                    with self._lookup.staged(place, left_s) as near:
                        result = read(near, left_s)
            except (TransferError, Unavailable) as failure:
                error = failure
                if isinstance(failure, Unavailable):
                    self._health.failed(place.location, failure)
            else:
                self._health.answered(place.location)
                return result
        raise error

    def _run(
        self,
        indexes: Sequence[int],
        work: Callable[[int], None],
        num_bytes: int,
        before: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        """All of them; on several threads when there is much to move, each calling `before` with its share.

        Raises the first error.
        """
        is_small = num_bytes < _PARALLEL_BYTES or len(indexes) < 2
        # A share of a batch that waited for shares of its own would hold the thread that they need.
        if self._pool is None or is_small or getattr(self._thread, "is_share", False):
            before(indexes)
            for index in indexes:
                work(index)
            return

        def share(number: int) -> None:
            self._thread.is_share = True
            before(indexes[number :: self._num_workers])
            for index in indexes[number :: self._num_workers]:
                work(index)

        # All have ended before the first error is raised: nothing is written to the caller's memory after that.
        shares = [self._pool.submit(share, number) for number in range(self._num_workers)]
        wait(shares)
        for done in shares:
            done.result()


def _chunk_seal(sealed: BlockLocation, index: int, chunk: memoryview) -> int:
    """The seal checksum that this chunk has in the version that is sealed."""
    checksums = tuple(payload_checksums(chunk, 0, PIECE_BYTES))
    key = chunk_key(sealed.hash, sealed.version, index)
    return seal(Trailer(key, sealed.version, len(chunk), checksums, PIECE_BYTES))[1]


def _is_type(footer: Footer, wanted: ValueType) -> bool:
    return not (wanted.dtype and footer.type.dtype and wanted != footer.type)


def _check_type(footer: Footer, wanted: ValueType) -> None:
    if not _is_type(footer, wanted):
        raise Rejected(
            f"it is {footer.type.dtype} {footer.type.shape}, not {wanted.dtype} {wanted.shape}"
        )


def _raise(found: Found | McError | None) -> None:
    if isinstance(found, McError):
        raise found
