"""Whether the memory that cache nodes are to lend is there: the directory, its kind, its size, its huge pages."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from daemons.config.common import size_bytes
from daemons.config.mc_cachenode import CachenodeConfig
from daemons.core.units import format_size
from mcctl.doctor.finding import Finding, Severity
from mcctl.doctor.host import Host
from mcctl.doctor.loaded import Loaded
from mcctl.file_system import FileSystem, file_system


def check_segments(loaded: Sequence[Loaded], host: Host) -> Iterator[Finding]:
    """All of a host's: those on one mount share its room."""
    together: Counter[str] = Counter()
    placed: list[tuple[Loaded, FileSystem]] = []
    for item in loaded:
        if not isinstance(item.config, CachenodeConfig) or not item.config.segment.directory:
            continue  # no file: what all take together is looked at as memory
        place = Path(item.config.segment.directory)
        found = file_system(place) if place.is_dir() else None
        if found is None:
            yield _absent(item, place)
            continue
        together[found.mount] += _wanted(item)
        placed.append((item, found))
    for item, found in placed:
        yield from _check_kind(item, found)
        short = no_room(found, together[found.mount], host)
        if short is not None:
            problem, fix = short
            yield _finding("error", item, f"`segment.directory` of {item.path} {problem}", fix)
            together[found.mount] = 0  # said once


def no_room(found: FileSystem, wanted: int, host: Host) -> tuple[str, str] | None:
    """Why so many bytes do not fit there, and the fix."""
    if found.size_bytes and found.size_bytes < wanted:
        return (
            f"has {format_size(found.size_bytes)}, the segments there take {format_size(wanted)}",
            f"mount -o remount,size={_with_room(wanted)} {found.mount}, or lower `segment.size`",
        )
    if found.kind != "hugetlbfs" or not found.page_bytes:  # 0: it tells none
        return None
    num_pages = -(-wanted // found.page_bytes)
    num_there = host.hugepages.get(found.page_bytes, 0)
    if num_there >= num_pages:
        return None
    page = format_size(found.page_bytes)
    pool = f"/sys/kernel/mm/hugepages/hugepages-{found.page_bytes >> 10}kB/nr_hugepages"
    return (
        f"takes {num_pages} pages of {page}, and the kernel has set {num_there} apart",
        f"echo {num_pages} > {pool}, best at boot, or lower `segment.size`",
    )


def _check_kind(item: Loaded, found: FileSystem) -> Iterator[Finding]:
    segment, what = item.config.segment, f"`segment.directory` of {item.path}"
    if not found.is_memory:
        fix = f"mount -t tmpfs -o size={_with_room(_wanted(item))} tmpfs {segment.directory}"
        problem = f"{what} is on {found.kind}: blocks are written to a disk"
        yield _finding("warning", item, problem, fix)
    if found.kind == "hugetlbfs" and segment.keep and not segment.index_directory:
        problem = (
            f"{what} is a hugetlbfs, where no index can be written: blocks end with their process"
        )
        fix = "name a tmpfs as `segment.index_directory`, e.g. /dev/shm"
        yield _finding("error", item, problem, fix)


def _absent(item: Loaded, place: Path) -> Finding:
    return _finding(
        "error",
        item,
        f"`segment.directory` of {item.path} is not there",
        f"mkdir -p {place} && mount -t tmpfs -o size={_with_room(_wanted(item))} tmpfs {place}",
    )


def _finding(severity: Severity, item: Loaded, problem: str, fix: str) -> Finding:
    place = item.config.segment.directory
    return Finding(severity=severity, area="memory", what=place, problem=problem, fix=fix)


def _wanted(item: Loaded) -> int:
    return size_bytes(item.config.segment.size, "segment.size")


def _with_room(size: int) -> str:
    """For the index beside the segment."""
    return f"{-(-size * 11 // 10 // (1 << 20))}m"
