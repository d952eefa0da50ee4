"""Reading a request's body within limits of size and time, whatever its headers claim."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import ClientDisconnect, Request

from daemons.core.units import MIB, format_size
from daemons.mc_gateway.api_error import ApiError

READ_TIMEOUT_S: Final = 60.0
DISCARD_BYTES: Final = 64 * MIB
DISCARD_S: Final = 3.0
"""A body that is too large is read and dropped within these limits: a connection closed at once would be reset, and
most clients would never see the reason."""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Raises ApiError 413, or 408 when it does not arrive, and ClientDisconnect."""
    stream = request.stream()
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        if request.headers.get("expect", "").lower() != "100-continue":
            await _discard(stream)
        raise _too_large(max_bytes)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            async for chunk in stream:
                size += len(chunk)
                if size > max_bytes:
                    break
                chunks.append(chunk)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {READ_TIMEOUT_S:g} s") from None
    if size > max_bytes:
        await _discard(stream)
        raise _too_large(max_bytes)
    return b"".join(chunks)


async def _discard(stream: AsyncIterator[bytes]) -> None:
    left = DISCARD_BYTES
    try:
        async with asyncio.timeout(DISCARD_S):
            async for chunk in stream:
                left -= len(chunk)
                if left < 0:
                    return
    except (TimeoutError, ClientDisconnect):
        return


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {format_size(max_bytes)}; send a shorter prompt, or raise http.max_body "
        "in mc-gateway.toml",
        code="body_too_large",
    )
