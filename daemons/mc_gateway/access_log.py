"""What was asked, as Mooncake writes its traces: when, how long prompt and answer were, and a number for each 512
tokens of the prompt with all before them. No text. `mcctl simulate` replays it.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from daemons.client.generate import GenerationRequest
from daemons.config.common import size_bytes
from daemons.config.mc_gateway import AccessLogSection
from daemons.core.errors import ConfigError
from daemons.core.ids import BlockHash
from daemons.mc_gateway.answer import Answer
from daemons.mc_gateway.day_file import DayFile, WallClock
from daemons.mc_gateway.metrics import GatewayMetrics
from daemons.protocol.prefix_hash import block_hashes, tenant_namespace

_BLOCK_TOKENS: Final = 512
"""Of the format, whatever blocks the model has."""


class AccessLine(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt that got at least a token. The first four are the trace's."""

    timestamp: int
    """Milliseconds of Unix time when the request came."""
    input_length: int
    output_length: int
    hash_ids: list[int]
    model: str
    tenant: str = ""


class AccessLog:
    """Coroutines' thread. A request costs some microseconds for each 512 tokens."""

    def __init__(self, file: DayFile, metrics: GatewayMetrics) -> None:
        self._file = file
        self._metrics = metrics
        self._encode = msgspec.json.Encoder().encode

    def record(self, requests: Sequence[GenerationRequest], answer: Answer, took_s: float) -> None:
        """`took_s`: since the request came."""
        came_ms = int((self._file.wall() - took_s) * 1000)
        for request, choice in zip(requests, answer.choices, strict=True):
            if choice.num_tokens:
                line = AccessLine(
                    timestamp=came_ms,
                    input_length=len(request.tokens),
                    output_length=choice.num_tokens,
                    hash_ids=hash_ids(request),
                    model=request.model,
                    tenant=request.tenant,
                )
                self._file.append(self._encode(line))
        self._metrics.access_lost.set(self._file.num_lost)

    def close(self) -> None:
        self._file.close()


def hash_ids(request: GenerationRequest) -> list[int]:
    """Of each 512 tokens, and of what is left: equal for equal beginnings of one model and tenant, below 2^63."""
    namespace = tenant_namespace(request.namespace, request.tenant)
    hashes = block_hashes(namespace, request.tokens, _BLOCK_TOKENS)
    tail = request.tokens[len(hashes) * _BLOCK_TOKENS :]
    if tail:
        hashes += block_hashes(hashes[-1] if hashes else namespace, tail, len(tail))
    return [_number(each) for each in hashes]


def access_file(directory: Path, day: str) -> Path:
    return directory / f"requests-{day}.jsonl"


def open_access_log(
    section: AccessLogSection, metrics: GatewayMetrics, wall: WallClock = time.time
) -> AccessLog | None:
    """None where none is wanted. Raises ConfigError when nothing can be written there."""
    if not section.directory:
        return None
    directory = Path(section.directory)
    try:
        file = DayFile(
            lambda day: access_file(directory, day),
            wall,
            what="access log",
            max_bytes=size_bytes(section.max_size, "access_log.max_size"),
        )
    except OSError as error:
        raise ConfigError(
            f"`access_log.directory`: cannot write in {directory}: {error.strerror}; the user of the gateway needs to"
        ) from None
    return AccessLog(file, metrics)


def _number(block_hash: BlockHash) -> int:
    return int.from_bytes(block_hash[:8], "big") >> 1
