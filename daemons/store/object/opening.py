"""What an earlier life of the node, or another machine of its name, left in the store: found by its manifests alone."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from daemons.core.errors import NotFound
from daemons.store.object.bucket import ObjectBucket
from daemons.store.object.catalog import Part
from daemons.store.object.manifest import (
    DATA,
    MANIFESTS,
    DamagedManifest,
    Entry,
    decode_manifest,
    manifest_key,
    number_of,
    parse_manifest_key,
)

log = logging.getLogger(__name__)

_READERS = 8


@dataclass(slots=True)
class Opened:
    """Parts, oldest first; `garbage`: keys that no whole part has, to be deleted."""

    parts: list[tuple[Part, list[Entry]]] = field(default_factory=list)
    garbage: list[str] = field(default_factory=list)
    num_damaged: int = 0
    last_number: int = 0


def open_parts(bucket: ObjectBucket, now_s: float, is_closed: Callable[[], bool]) -> Opened:
    """Changes nothing. Raises Unavailable, ConfigError."""
    sizes = {found.key.removeprefix(DATA): found.num_bytes for found in bucket.list(DATA)}
    opened = Opened()
    revisions: dict[str, int] = {}
    for found in bucket.list(MANIFESTS):
        parsed = parse_manifest_key(found.key)
        if parsed is None:
            continue
        name, revision = parsed
        older = revisions.get(name)
        if older is not None:
            opened.garbage.append(manifest_key(name, min(older, revision)))
        revisions[name] = max(revision, older or 0)
    names = sorted(name for name in {*sizes, *revisions} if number_of(name) is not None)
    opened.last_number = max((number_of(name) or 0 for name in names), default=0)
    opened.garbage.extend(_halves(names, sizes, revisions))
    whole = [name for name in names if name in sizes and name in revisions]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="mc-object-open") as readers:
        read = readers.map(lambda name: _read(bucket, name, revisions[name], is_closed), whole)
        for part_id, (name, entries) in enumerate(zip(whole, read, strict=True), 1):
            revision = revisions[name]
            part = Part(part_id, name, sizes[name], now_s, revision, revision)
            _take(opened, part, entries)
    return opened


def _halves(
    names: Iterable[str], sizes: Mapping[str, int], revisions: Mapping[str, int]
) -> Iterator[str]:
    """Of a put or a removal that was never finished."""
    for name in names:
        if name not in sizes:
            yield manifest_key(name, revisions[name])
        elif name not in revisions:
            yield DATA + name


def _read(
    bucket: ObjectBucket, name: str, revision: int, is_closed: Callable[[], bool]
) -> list[Entry] | None:
    """None for one that is damaged."""
    if is_closed():
        return []
    try:
        return decode_manifest(name, bucket.get(manifest_key(name, revision)))
    except (DamagedManifest, NotFound) as error:
        log.warning("object part dropped part=%s why=%s", name, error.message)
        return None


def _take(opened: Opened, part: Part, entries: list[Entry] | None) -> None:
    if entries is None:
        opened.num_damaged += 1
        opened.garbage.extend(part.keys)
        return
    fits = [e for e in entries if e.offset + e.block.stored_bytes <= part.num_bytes]
    if len(fits) < len(entries):
        log.warning("object part cut short part=%s lost=%d", part.name, len(entries) - len(fits))
    opened.parts.append((part, fits))
