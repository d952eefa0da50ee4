"""Work requests of a slice: neighbours merged, borders of registrations respected. Pure.

A work request has one run of remote bytes, and the local pieces it is scattered to or gathered from.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from daemons.transfer.slices import Slice, Span


class Buffer(NamedTuple):
    """Local memory that spans name by its number. It is part of registration number `registration`."""

    address: int
    registration: int
    base: int
    """Where the registration's first chunk starts."""


class Request(NamedTuple):
    """One work request, before keys."""

    remote: int
    length: int
    pieces: tuple[tuple[int, int], ...]
    """(address, length) of each."""
    registration: int


@dataclass(frozen=True, slots=True)
class Limits:
    """No request crosses a multiple of the chunk sizes: the keys change there."""

    request_bytes: int
    remote_chunk_bytes: int
    local_chunk_bytes: int
    max_pieces: int


def requests_of(piece: Slice, buffers: Sequence[Buffer], limits: Limits) -> list[Request]:
    """In the order of the spans. The work is by spans, never by bytes."""
    requests: list[Request] = []
    remote_chunk, local_chunk = limits.remote_chunk_bytes, limits.local_chunk_bytes
    start = end = registration = -1
    pieces: list[tuple[int, int]] = []
    for span in piece.spans:
        address, its_registration, base = buffers[span.buffer]
        for remote, place, size in _parts(span, address - base, limits):
            is_next = (
                remote == end
                and end % remote_chunk != 0
                and its_registration == registration
                and end - start + size <= limits.request_bytes
            )
            last_address, last_size = pieces[-1] if is_next else (0, 0)
            if is_next and last_address + last_size == base + place and place % local_chunk:
                pieces[-1] = (last_address, last_size + size)
            elif is_next and len(pieces) < limits.max_pieces:
                pieces.append((base + place, size))
            else:
                if pieces:
                    requests.append(Request(start, end - start, tuple(pieces), registration))
                start, registration, pieces = remote, its_registration, [(base + place, size)]
            end = remote + size
    requests.append(Request(start, end - start, tuple(pieces), registration))
    return requests


def _parts(span: Span, shift: int, limits: Limits) -> Iterator[tuple[int, int, int]]:
    """(remote, place in the local registration, size) of what lies between borders, none too long."""
    remote, place, length, _ = span
    place += shift
    remote_chunk, local_chunk = limits.remote_chunk_bytes, limits.local_chunk_bytes
    while length:
        size = min(
            limits.request_bytes,
            remote_chunk - remote % remote_chunk,
            local_chunk - place % local_chunk,
            length,
        )
        yield remote, place, size
        remote, place, length = remote + size, place + size, length - size
