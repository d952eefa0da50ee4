"""Requests to replay: the JSONL format that Mooncake published its traces in, and what a generator makes.

A row is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [int, ...]}; an id names a
block of 512 tokens together with all that stands before it, the last one may be partial.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from daemons.core.errors import ConfigError, NotFound
from daemons.protocol.base import MALFORMED

BLOCK_TOKENS: Final = 512
MAX_TOKENS: Final = 1 << 24
MAX_SPAN_S: Final = 1e9
"""Thirty years; with a longer one a double has no digits left for the times within."""

_MAX_LINE_BYTES: Final = 1 << 20
"""More than a row of MAX_TOKENS needs."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """`blocks` are the whole ones only: the KV of a partial block is of use to nobody else."""

    number: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


class _Row(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_trace(path: Path, *, limit: int | None = None) -> list[TraceRequest]:
    """In order of arrival, the first at time 0. Raises NotFound, and ConfigError naming the line that is wrong."""
    decoder = msgspec.json.Decoder(_Row)
    requests: list[TraceRequest] = []
    try:
        with path.open("rb") as file:
            lines = iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b"")
            for number, line in enumerate(lines, 1):
                if limit is not None and len(requests) >= limit:
                    break
                if line.strip():
                    requests.append(_request(decoder, line, f"{path} line {number}"))
    except OSError as error:
        raise NotFound(f"trace {path}: {error.strerror or error}") from error
    if not requests:
        raise ConfigError(f"trace {path} holds no request")
    return _checked(in_order(requests))


def in_order(requests: Iterable[TraceRequest]) -> list[TraceRequest]:
    """Sorted by arrival, moved to begin at 0 and numbered."""
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    first_s = ordered[0].arrival_s if ordered else 0.0
    return [
        replace(request, number=number, arrival_s=request.arrival_s - first_s)
        for number, request in enumerate(ordered)
    ]


def at_rate(requests: Sequence[TraceRequest], factor: float) -> list[TraceRequest]:
    """The same requests coming `factor` times as fast. Raises ConfigError."""
    return _checked(
        [replace(request, arrival_s=request.arrival_s / factor) for request in requests]
    )


def _checked(requests: list[TraceRequest]) -> list[TraceRequest]:
    """In order, begins at 0. Raises ConfigError."""
    if not requests[-1].arrival_s <= MAX_SPAN_S:
        raise ConfigError(
            f"the requests would come within {requests[-1].arrival_s:g} s, at most {MAX_SPAN_S:g} s can be replayed"
        )
    return requests


def _request(decoder: msgspec.json.Decoder[_Row], line: bytes, where: str) -> TraceRequest:
    if len(line) > _MAX_LINE_BYTES:
        raise ConfigError(f"{where} is longer than a request can be, {_MAX_LINE_BYTES} bytes")
    try:
        row = decoder.decode(line)
    except MALFORMED as error:
        raise ConfigError(f"{where} is no request of a Mooncake trace: {error}") from error
    num_blocks = -(-row.input_length // BLOCK_TOKENS)
    if not 0 < row.input_length <= MAX_TOKENS or not 0 <= row.output_length <= MAX_TOKENS:
        raise ConfigError(
            f"{where}: lengths {row.input_length} and {row.output_length} make no request"
        )
    if len(row.hash_ids) != num_blocks:
        raise ConfigError(
            f"{where}: {row.input_length} tokens are {num_blocks} blocks of {BLOCK_TOKENS}, "
            f"`hash_ids` has {len(row.hash_ids)}"
        )
    if not all(0 <= block < 1 << 63 for block in row.hash_ids) or not row.timestamp >= 0:
        raise ConfigError(f"{where}: ids and timestamps are not negative")
    return TraceRequest(
        number=0,
        arrival_s=row.timestamp / 1000,
        input_tokens=row.input_length,
        output_tokens=max(1, row.output_length),
        blocks=tuple(row.hash_ids[: row.input_length // BLOCK_TOKENS]),
    )
