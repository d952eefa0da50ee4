"""Objects of one namespace in a directory or a tar file: a file each, and an index with names, types and checksums.

An export is complete once its index is written, which comes last. Before anything is put, an import has checked every
file against it.
"""

import contextlib
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec
import numpy as np
import xxhash

from daemons.client.objects.store import Kind, ObjectStat, Store, ValueType
from daemons.core.errors import ConfigError, Conflict, McError, TransferError, Unavailable
from daemons.core.units import MIB, format_count

_FORMAT: Final = "mooncake-objects-1"
_INDEX: Final = "index.json"
_STEP: Final = 16 * MIB
_FILE: Final = re.compile(r"objects/\d{8,}")
_ATTEMPTS: Final = 3

Progress = Callable[[str], object]


class ArchivedObject(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the index. `name` is hex digits, for it may be any bytes."""

    name: str
    file: str
    num_bytes: int
    xxh3_128: str
    kind: Kind = "bytes"
    dtype: str = ""
    shape: list[int] = msgspec.field(default_factory=list)


class ArchiveIndex(msgspec.Struct, frozen=True, kw_only=True):
    """`namespace` is hex digits: where the objects came from, not where they must go."""

    format: str
    namespace: str
    objects: list[ArchivedObject]


class Target(Protocol):
    """Where an export goes."""

    def add(self, name: str, source: IO[bytes]) -> None: ...


@dataclass(frozen=True, slots=True)
class ImportCount:
    """What became of the objects of an archive."""

    num_put: int
    num_bytes: int
    failures: list[tuple[str, McError]]


def export_objects(store: Store, path: Path, progress: Progress) -> ArchiveIndex:
    """A tar file where `path` ends in .tar, else a directory, which must be new or empty. Raises ConfigError."""
    with _target(path) as target:
        objects: list[ArchivedObject] = []
        for number, listed in enumerate(store.list()):
            progress(f"{format_count(number, 'object')} exported")
            file = f"objects/{number:08}"
            with tempfile.TemporaryFile(dir=path.parent) as spool:
                found = _fetch(store, listed.name, spool)
                if found is None:
                    continue  # deleted or evicted since it was listed
                stat, checksum = found
                spool.seek(0)
                target.add(file, spool)
            objects.append(
                ArchivedObject(
                    name=listed.name.hex(),
                    file=file,
                    num_bytes=stat.value_bytes,
                    xxh3_128=checksum,
                    kind=stat.kind,
                    dtype=stat.dtype,
                    shape=list(stat.shape),
                )
            )
        index = ArchiveIndex(format=_FORMAT, namespace=store.namespace.hex(), objects=objects)
        target.add(_INDEX, io.BytesIO(msgspec.json.format(msgspec.json.encode(index), indent=1)))
    return index


def import_objects(store: Store, path: Path, progress: Progress, *, replaces: bool) -> ImportCount:
    """Nothing is put where a file is missing or damaged. Raises ConfigError, TransferError."""
    with _source(path) as directory:
        index = _read_index(directory)
        for number, entry in enumerate(index.objects):
            progress(f"{number} of {format_count(len(index.objects), 'object')} checked")
            _check(directory, entry)
        num_put = num_bytes = 0
        failures: list[tuple[str, McError]] = []
        for number, entry in enumerate(index.objects):
            progress(f"{number} of {format_count(len(index.objects), 'object')} imported")
            try:
                _put(store, directory, entry, replaces=replaces)
            except McError as error:
                failures.append((entry.name, error))
                continue
            num_put += 1
            num_bytes += entry.num_bytes
    return ImportCount(num_put, num_bytes, failures)


def _fetch(store: Store, name: bytes, spool: IO[bytes]) -> tuple[ObjectStat, str] | None:
    """One version of it, whole; None when it is gone."""
    for _ in range(_ATTEMPTS):
        before = store.stat(name)
        if before is None:
            return None
        spool.seek(0)
        spool.truncate()
        digest = xxhash.xxh3_128()
        for start in range(0, before.value_bytes, _STEP):
            part = store.get_range(name, start, min(_STEP, before.value_bytes - start))
            if part is None:
                break
            digest.update(part)
            spool.write(part)
        after = store.stat(name)
        is_same = after is not None and after.version == before.version
        if is_same and spool.tell() == before.value_bytes:
            return before, digest.hexdigest()
    raise Unavailable(f"{name!r} is replaced faster than it can be read; try again")


def _put(store: Store, directory: Path, entry: ArchivedObject, *, replaces: bool) -> None:
    put = store.replace if replaces else store.put
    value_type = ValueType(entry.kind, entry.dtype, tuple(entry.shape))
    path = directory / entry.file
    value = np.memmap(path, np.uint8, "r") if entry.num_bytes else b""
    put(bytes.fromhex(entry.name), value, like=value_type)


class _DirectoryTarget:
    def __init__(self, path: Path) -> None:
        try:
            (path / "objects").mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; choose a new directory") from None
        self._path = path

    def undo(self) -> None:
        """The same command can be given again."""
        shutil.rmtree(self._path / "objects", ignore_errors=True)
        with contextlib.suppress(OSError):  # others' files are in it
            self._path.rmdir()

    def add(self, name: str, source: IO[bytes]) -> None:
        with (self._path / name).open("xb") as file:
            _copy(source, file)


class _TarTarget:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def add(self, name: str, source: IO[bytes]) -> None:
        member = tarfile.TarInfo(name)
        member.size = source.seek(0, os.SEEK_END)
        source.seek(0)
        self._tar.addfile(member, source)


@contextmanager
def _target(path: Path) -> Iterator[Target]:
    if path.suffix != ".tar":
        directory = _DirectoryTarget(path)
        try:
            yield directory
        except BaseException:
            directory.undo()
            raise
        return
    if path.exists():
        raise Conflict(f"{path} is there already; choose another name")
    draft = path.with_name(f"{path.name}.part")
    try:
        with tarfile.open(draft, "w") as tar:
            yield _TarTarget(tar)
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _source(path: Path) -> Iterator[Path]:
    """The directory; a tar file's members that an index may name are unpacked beside it first."""
    if path.is_dir():
        yield path
        return
    try:
        with (
            tempfile.TemporaryDirectory(dir=path.parent, prefix=".mc-import-") as unpacked,
            tarfile.open(path, "r:") as tar,
        ):
            directory = Path(unpacked)
            (directory / "objects").mkdir()
            for member in tar:
                source = tar.extractfile(member) if member.isreg() else None
                if source is not None and (member.name == _INDEX or _FILE.fullmatch(member.name)):
                    with (directory / member.name).open("xb") as file:
                        _copy(source, file)
            yield directory
    except (OSError, tarfile.TarError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path}: it cannot be read as an export: {why}; name what mcctl cache export wrote"
        ) from None


def _read_index(directory: Path) -> ArchiveIndex:
    path = directory / _INDEX
    try:
        index = msgspec.json.decode(path.read_bytes(), type=ArchiveIndex)
        names = [bytes.fromhex(entry.name) for entry in index.objects]
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; an export without an index is not complete"
        ) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if index.format != _FORMAT:
        raise ConfigError(f"{path}: format {index.format!r} is of another release")
    bad = [entry for entry in index.objects if not _FILE.fullmatch(entry.file)]
    if bad or len(set(names)) < len(names):
        raise ConfigError(f"{path}: it names {bad[0].file if bad else 'an object twice'}")
    return index


def _check(directory: Path, entry: ArchivedObject) -> None:
    path, digest, size = directory / entry.file, xxhash.xxh3_128(), 0
    try:
        with path.open("rb") as file:
            while part := file.read(_STEP):
                digest.update(part)
                size += len(part)
    except OSError as error:
        raise TransferError(f"{path}: {error.strerror}; nothing was imported") from None
    if (size, digest.hexdigest()) != (entry.num_bytes, entry.xxh3_128):
        raise TransferError(f"{path} is not what was exported; nothing was imported")


def _copy(source: IO[bytes], file: IO[bytes]) -> None:
    while part := source.read(_STEP):
        file.write(part)
